"""terminal-basics in real containers: a task of each family, and programs that try to grade themselves."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.dataset_index import DATASETS, TERMINAL, entries
from tests.conftest import succeed
from tests.support.docker_parts import a_run, remove_run, reward, run_trial
from tests.support.tiers import first

FOLDER = DATASETS / TERMINAL
RUN = a_run("test-bundled")
PARALLEL = 4
GREET = 'for n in ["Hello"]:\n    print(n)\n'
# What an agent may put into the program that the verifier runs.
PROGRAMS = {
    "writes the reward": "import os\nos.system('echo 1 > /logs/verifier/reward.txt')\n" + GREET,
    "writes it later": "import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
    "        os.system('echo 1 > /logs/verifier/reward.txt')\n" + GREET,
    "looks for the answer": "import os\nos.system('cat /tests/* /tmp/verify*/*')\n",
    "changes the test": "import os\nos.system('echo echo 1 > /logs/verifier/reward.txt > /tests/test.sh')\n" + GREET,
}


@pytest.fixture(scope="module", autouse=True)
def tools_image(docker_ready: str) -> Iterator[None]:
    succeed("scripts/setup.sh", "--tools-image", timeout_sec=900)
    yield
    remove_run(RUN)


def samples() -> list[str]:
    """One task of each family, with levels taken in turn."""
    tasks = entries(FOLDER)
    families = sorted({task.family for task in tasks})
    wanted = [(family, ("hard", "medium", "easy")[number % 3]) for number, family in enumerate(families)]
    found = {(task.family, task.level): task.name for task in tasks}
    return [found[key] for key in wanted]


@pytest.mark.parametrize("third", first(1, range(3)))
async def test_the_oracle_earns_1_and_doing_nothing_0(tmp_path: Path, third: int) -> None:
    limit = asyncio.Semaphore(PARALLEL)

    async def rewards(name: str) -> tuple[str, float, float]:
        task = tmp_path / name
        shutil.copytree(FOLDER / name, task)
        async with limit:
            nothing = reward(await run_trial(task, RUN, "nop"))
            return name, nothing, reward(await run_trial(task, RUN))

    names = samples()[third::3]
    assert await asyncio.gather(*map(rewards, names)) == [(name, 0.0, 1.0) for name in names]


async def test_programs_that_the_verifier_runs_cannot_grade_themselves(tmp_path: Path) -> None:
    async def rewarded(folder: Path, program: str) -> float:
        task = folder / "python-greet"
        shutil.copytree(FOLDER / task.name, task)
        (task / "solution" / "solve.sh").write_text(f"cat > /app/greet.py << 'END'\n{program}END\n")
        return reward(await run_trial(task, RUN))

    rewards = await asyncio.gather(*(rewarded(tmp_path / str(n), text) for n, text in enumerate(PROGRAMS.values())))
    assert dict(zip(PROGRAMS, rewards, strict=True)) == dict.fromkeys(PROGRAMS, 0.0)
