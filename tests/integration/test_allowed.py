"""A trial that ends without a grade, and the command that allows what it depended on."""

import asyncio
from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from harbortrainer.venues.harbor.grading import CAUSES
from tests.support.plain_container import product_trial
from tests.support.task_folder import write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
TEST = """r=0; grep -qx done /app/state && [ "$(cat /etc/greetings/* 2>/dev/null)" = Hello ] && r=1
echo $r > /logs/verifier/reward.txt
"""
WORK = "echo done > /app/state; echo Hello > /etc/greetings/{name}\n"


def test_what_an_ungraded_trial_depended_on_is_allowed_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dockerfile = "FROM harbortrainer/base:bookworm\nRUN mkdir /etc/greetings\nWORKDIR /app\n"
    task = write_task(
        tmp_path / "task",
        dockerfile=dockerfile,
        test=TEST,
        solve=WORK.format(name="10-hello"),
        files={"instruction.md": "Say Hello.\n"},
    )
    before = asyncio.run(product_trial(task, WORK.format(name="first")))
    assert before.reward is None and "/etc/greetings/first" in before.fault
    (causes,) = (tmp_path / "trials").glob(f"*/{CAUSES}")
    assert main(["tasks", "allow", str(task), f"trial={causes.parent}"]) == 0
    assert asyncio.run(product_trial(task, WORK.format(name="first"))).reward == 1
