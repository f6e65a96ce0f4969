"""How much honest work of 24 kinds, each done in two ways, is graded: `-s` prints the count."""

import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import succeed
from tests.support.plain_container import plain_reward, product_trials
from tests.support.task_folder import write_task

pytestmark = [pytest.mark.usefixtures("docker_ready"), pytest.mark.nightly]
KINDS: dict[str, dict[str, Any]] = tomllib.loads(Path("tests/support/honest_kinds.toml").read_text())
MOST = {True: 5, False: 17}  # ways that are `unasked`, of 48 each; some more where the machine is busy
IMAGE = """source scripts/lib/common.sh
for part in python apt_sources docker base_image; do source scripts/lib/$part.sh; done
ensure_image harbortrainer/services:bookworm "$TOOLS_PACKAGES ca-certificates cron locales logrotate make nginx-light \
openssh-server openssl python3-pip python3-pytest sudo"
"""
DOCKERFILE = """FROM harbortrainer/services:bookworm
COPY given.sh /
RUN bash -e /given.sh && rm -rf /given.sh /tmp/*
WORKDIR /app
"""
TEST = "cd /tests; python3 -m pytest -q test_outputs.py && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
OUTPUTS = 'import subprocess\ndef test():\n    subprocess.run(["bash", "-c", {!r}], check=True)\n'


@pytest.fixture(scope="module", autouse=True)
def image(docker_ready: str) -> None:
    succeed("bash", "-ec", IMAGE)


def kind_task(folder: Path, kind: dict[str, Any], *, solved: bool) -> Path:
    files = {"environment/given.sh": kind.get("given", ""), "instruction.md": f"{kind['asks']}\n"}
    files["tests/test_outputs.py"] = OUTPUTS.format(kind["test"])
    task = write_task(folder / "task", dockerfile=DOCKERFILE, test=TEST, solve=kind["ways"][0], files=files)
    if not solved:
        shutil.rmtree(task / "solution")
    return task


@pytest.mark.parametrize("name", KINDS)
def test_honest_ways_earn_in_a_plain_container(tmp_path: Path, name: str) -> None:
    task = kind_task(tmp_path, KINDS[name], solved=True)
    assert [plain_reward(task, way) for way in ("true", *KINDS[name]["ways"])] == [0, 1, 1]


@pytest.mark.parametrize("solved", MOST)
async def test_honest_work_is_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solved: bool) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ways = {f"{name} {n}": (kind, way) for name, kind in KINDS.items() for n, way in enumerate(kind["ways"], 1)}
    cases = [(kind_task(tmp_path / name, kind, solved=solved), way) for name, (kind, way) in ways.items()]
    trials = dict(zip(ways, await product_trials(cases), strict=True))
    print(f"\n{solved=}", Counter(trial.reward for trial in trials.values()))
    print(*(f"{name}: {trial.fault}" for name, trial in trials.items() if trial.reward is None), sep="\n")
    assert {name: trial for name, trial in trials.items() if trial.reward == 0} == {}
    assert len([trial for trial in trials.values() if trial.reward is None]) <= MOST[solved]
