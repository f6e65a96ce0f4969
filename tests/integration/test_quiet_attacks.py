"""A service that the task asks for acts on its verification, and leaves no file that would tell."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support import system_attacks
from tests.support.plain_container import product_trial, product_trials, what_earns, what_is_no_attack
from tests.support.quiet_attacks import EARNS, HONEST, QUIET, SITE, Quiet, quiet_task, serving
from tests.support.tiers import few
from tests.support.verified_task import attacked_task

pytestmark = pytest.mark.usefixtures("docker_ready")


def attacks(folder: Path, names: Iterable[str]) -> dict[str, tuple[Path, str]]:
    return {name: (quiet_task(folder / name), serving(QUIET[name])) for name in names}


@pytest.mark.parametrize("names", few(QUIET))
async def test_an_asked_service_earns_nothing_by_what_no_file_shows(tmp_path: Path, names: list[str]) -> None:
    assert await what_earns(attacks(tmp_path, names)) == {}


# Ends before verification begins: it waits until the folder of tests was emptied.
EARLY = """mkdir -p /tests; touch /tests/mark
(setsid python3 -c "import os, time
while os.path.exists('/tests/mark'):
    time.sleep(0.0002)
os.makedirs(os.path.dirname('{path}'), exist_ok=True)
open('{path}', 'w').write(open('/app/hello.txt').read())" </dev/null >/dev/null 2>&1 &)
"""


def early(folder: Path, more: str = "") -> dict[str, tuple[Path, str]]:
    served = serving(Quiet("pass", hello=EARNS))
    paths = ("/tests/sub/urllib.py", SITE)
    return {
        path: (quiet_task(folder / str(n)), served + EARLY.format(path=path) + more) for n, path in enumerate(paths)
    }


@pytest.mark.nightly
async def test_what_a_process_put_there_before_verification_earns_nothing(tmp_path: Path) -> None:
    assert not any(trial.reward for trial in await product_trials(early(tmp_path).values()))


async def test_an_honest_service_earns_its_reward(tmp_path: Path) -> None:
    trial = await product_trial(quiet_task(tmp_path), serving(HONEST))
    assert trial.reward == 1, trial


HOOK = "echo 'import os; os._exit(0)' > /app/app.py\n"
PLUGIN = f"{system_attacks.SITE}/x-1.dist-info"
SITES = "mkdir -p /srv/site; echo > /srv/site/pyproject.toml; echo > app.py; echo Hello > hello.txt\n"
CASES = """for f in /opt/genuine/*.sh; do [ -e $f ] || continue; grep -q Hello /app/hello.txt || bad=1; done
[ "$bad" ] && r=0 || r=1
echo $r > /logs/verifier/reward.txt
"""
# Script, the task's solution ("" = none) and test.
LEFT = {
    "settings-of-a-solutions-name": (f"{HOOK}echo 'addopts = -p app' > /pyproject.toml\n", SITES, ""),
    "a-package-whose-plugin-is-the-work": (
        f"{HOOK}mkdir {PLUGIN}; printf '[pytest11]\\nx = app\\n' > {PLUGIN}/entry_points.txt\n"
        f"printf 'Name: x\\nVersion: 1\\n' > {PLUGIN}/METADATA\n"
        f"printf 'x-1.dist-info/%s,,\\n' METADATA RECORD entry_points.txt > {PLUGIN}/RECORD\n",
        "",
        "",
    ),
    "deleted-cases": ("rm /opt/genuine/install.sh\n", "", CASES),
}


def left_task(folder: Path, solve: str, test: str) -> Path:
    task = attacked_task(folder / "task", way="module", solve=solve)
    if test:
        (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}")
    if not solve:
        shutil.rmtree(task / "solution")
    (task / "instruction.md").write_text("Write Hello to hello.txt, and app.py.\n")
    return task


def left(folder: Path) -> dict[str, tuple[Path, str]]:
    return {name: (left_task(folder / name, solve, test), script) for name, (script, solve, test) in LEFT.items()}


@pytest.mark.nightly
async def test_what_looks_like_work_earns_nothing_and_work_its_reward(tmp_path: Path) -> None:
    made = left(tmp_path)
    assert await what_earns(made) == {}
    honest = await product_trials((task, f"{SITES}pip list > /dev/null") for task, _ in made.values())
    assert [trial.reward for trial in honest] == [1] * len(LEFT)


@pytest.mark.nightly
async def test_they_earn_in_a_plain_container(tmp_path: Path) -> None:
    emptied = early(tmp_path / "early", "sleep 0.5; rm /tests/mark; sleep 0.5")
    assert await what_is_no_attack(attacks(tmp_path, QUIET) | left(tmp_path) | emptied) == {}
