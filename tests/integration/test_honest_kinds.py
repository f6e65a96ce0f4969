"""How much honest work of 24 kinds, each done in two ways, is graded: `-s` prints the count."""

import asyncio
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
IMAGE = "harbortrainer/services:bookworm"
MADE = f"""source scripts/lib/common.sh
for part in python apt_sources docker base_image; do source scripts/lib/$part.sh; done
ensure_image {IMAGE} "$TOOLS_PACKAGES ca-certificates cron locales logrotate make nginx-light openssh-server openssl \
python3-pip python3-pytest sudo"
"""
TEST = "cd /tests; python3 -m pytest -q test_outputs.py && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
OUTPUTS = 'import subprocess\ndef test():\n    subprocess.run(["bash", "-c", {!r}], check=True)\n'
# Kinds, and the number of the way, that are `unasked`.
UNASKED: dict[bool, set[str]] = {True: set(), False: set()}


@pytest.fixture(scope="module")
def image() -> None:
    succeed("bash", "-ec", MADE)


def kind_task(folder: Path, kind: dict[str, Any], *, solved: bool) -> Path:
    files = {"given.sh": kind.get("given", ""), "instruction.md": f"{kind['asks']}\n"}
    task = write_task(
        folder / "task",
        dockerfile=f"FROM {IMAGE}\nCOPY given.sh /\nRUN bash -e /given.sh && rm -rf /given.sh /tmp/*\nWORKDIR /app\n",
        test=TEST,
        solve=kind["ways"][0],
        files={
            "environment/given.sh": files["given.sh"],
            "instruction.md": files["instruction.md"],
            "tests/test_outputs.py": OUTPUTS.format(kind["test"]),
        },
    )
    if not solved:
        shutil.rmtree(task / "solution")
    return task


async def test_honest_ways_earn_in_a_plain_container(tmp_path: Path, image: None) -> None:
    few = asyncio.Semaphore(3)

    async def rewards(name: str) -> list[float | None]:
        task, kind = kind_task(tmp_path / name, KINDS[name], solved=True), KINDS[name]
        async with few:
            return [await asyncio.to_thread(plain_reward, task, script) for script in ("true", *kind["ways"])]

    found = dict(zip(KINDS, await asyncio.gather(*map(rewards, KINDS)), strict=True))
    assert {name: wrong for name, wrong in found.items() if wrong != [0, 1, 1]} == {}


@pytest.mark.parametrize("solved", [True, False])
async def test_honest_work_is_graded(tmp_path: Path, image: None, solved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cases = {
        f"{name} {way}": (kind_task(tmp_path / f"{name} {way}", kind, solved=solved), kind["ways"][way])
        for name, kind in KINDS.items()
        for way in range(2)
    }
    trials = dict(zip(cases, await product_trials(cases.values()), strict=True))
    print(f"\n{solved=}", Counter(trial.reward for trial in trials.values()))
    for name, trial in trials.items():
        if trial.reward != 1:
            print(name, trial.reward, trial.fault)
    assert {name: trial for name, trial in trials.items() if trial.reward == 0} == {}
    assert {name for name, trial in trials.items() if trial.reward is None} == UNASKED[solved]
