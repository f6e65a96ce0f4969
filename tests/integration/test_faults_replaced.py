"""Faults caused for real under a group of trials: each is named, its member replaced, nobody scored for it."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.daemon import engine
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup
from harbortrainer.learning.treatment import unfit
from harbortrainer.rollout.quarantine import Retries
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.ledger import Ledger
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.task import Task
from tests.support.docker_parts import a_run
from tests.support.fakes import Request, chat_template
from tests.support.tiers import first
from tests.support.trial_parts import SOLVE, TEST_SH, local_host, make_task

RUN_ID = a_run("faults")
RUN = {"label": [f"harbortrainer.run_id={RUN_ID}", "harbortrainer.trial"]}
VERIFIER = f"""case "$(cat /fault 2>/dev/null)" in
crash) kill -SEGV $$ ;;
hang) sleep 600 ;;
once) rm /fault; kill -SEGV $$ ;;
esac
{TEST_SH}"""
OOM_SCORE_OF_FIRST_PROCESS = 1000  # the kernel then ends the container's first process, and so the container


def vanish(container: str) -> None:
    engine().remove_container(container, force=True)


def out_of_memory(container: str) -> None:
    """By the kernel, at the container's own limit."""
    client = engine()
    first = client.inspect_container(container)["State"]["Pid"]
    Path(f"/proc/{first}/oom_score_adj").write_text(str(OOM_SCORE_OF_FIRST_PROCESS))
    client.exec_start(client.exec_create(container, ["tail", "/dev/zero"])["Id"], detach=True)
    client.wait(container, timeout=600)
    assert client.inspect_container(container)["State"]["ExitCode"] == 137


def verifier(fault: str) -> Callable[[str], None]:
    def cause(container: str) -> None:
        client = engine()
        client.exec_start(client.exec_create(container, ["sh", "-c", f"echo {fault} > /fault"], user="root")["Id"])

    return cause


FAULTS: list[tuple[Callable[[str], None], Outcome, str]] = [
    (vanish, Outcome.INFRASTRUCTURE_ERROR, ""),
    (out_of_memory, Outcome.INFRASTRUCTURE_ERROR, ""),
]
AGAIN = [verifier("once")]  # verification is killed from outside, or late since the machine slept: it is done once more
# A container of the trial has what makes verification break each time, where that of an untouched one ends: it earns 0.
BROKEN = [verifier("crash"), verifier("hang")]


async def run_group(
    folder: Path, task: Task, policy: Any, ledger: Any, n: int = len(FAULTS), *beside: Task, **fields: Any
) -> TrajectoryGroup:
    """One trial at a time."""
    host, _ = local_host(policy, **{"n_parallel_envs": 1, **fields})
    parts, retries = host.parts, Retries(attempts=9, faults=99)  # all faults may hit one slot
    rollouts = Rollouts(parts.config, parts.sampler, parts.template, RUN_ID, ledger, retries=retries)
    rollouts._gates.containers.resize(1)
    try:
        group, *_ = await rollouts.run_groups([task, *beside], n, folder / "b", step=0, temperature=1.0)
    finally:
        await rollouts.aclose()
    assert engine().containers(all=True, filters=RUN) == []
    return group


def by_turn(request: Request) -> str:
    said = chat_template().tokenizer.decode(request.prompt_T).count("<|im_start|>assistant") - 1
    return SOLVE[min(said, 2)]


def lost(ledger: Path) -> list[dict[str, Any]]:
    return [r for r in read_lines(ledger, checked=True) if r["event"] == "ended" and r["fate"] != "graded"]


@pytest.mark.parametrize("broken", first(1, [BROKEN[:1], BROKEN[1:]]), ids=["crash", "hang"])
@pytest.mark.usefixtures("docker_ready")
async def test_every_fault_is_named_and_replaced_and_the_group_is_whole(tmp_path: Path, broken: list[Any]) -> None:
    task = make_task(tmp_path, test=VERIFIER)
    toml = (folder_of(task) / "task.toml").read_text()
    (folder_of(task) / "task.toml").write_text(
        toml.replace("[verifier]\ntimeout_sec = 300.0", "[verifier]\ntimeout_sec = 12.0")
    )
    left = [*(cause for cause, _, _ in FAULTS), *AGAIN, *broken]

    def policy(request: Request) -> str:
        if left and by_turn(request) == SOLVE[0]:
            newest = engine().containers(filters=RUN)[0]
            left.pop(0)(newest["Id"])
        return by_turn(request)

    group = await run_group(tmp_path, task, policy, Ledger(tmp_path / "ledger.jsonl"), len(left))
    assert group.rewards_G == (1.0,) * (len(FAULTS) + len(AGAIN)) + (0.0,) * len(broken) and not group.lost
    records = lost(tmp_path / "ledger.jsonl")
    assert all(
        record["reward"] is None and record["fate"].startswith("replaced by s000000-p00-g0") for record in records
    )
    rest = iter(records)
    for _, outcome, cause in FAULTS:
        assert any(r["outcome"] == outcome and cause in r["cause"] for r in rest), (outcome, cause, records)


@pytest.mark.usefixtures("docker_ready")
async def test_a_task_whose_first_prompt_is_too_long_is_left_out_by_its_first_trial(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (folder_of(task) / "instruction.md").write_text("Write Hello to hello.txt. " * 10_000)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    group = await run_group(tmp_path, task, by_turn, ledger, 3, make_task(tmp_path, name="good"), context_limit=20_000)
    assert unfit(group) and {trial.detail for trial in group.lost[1:]} == {
        f"its task is quarantined: infrastructure_error: {unfit(group)}"
    }
    (record,) = lost(tmp_path / "ledger.jsonl")
    assert (record["fate"], record["cause"]) == ("quarantined", unfit(group))
    assert re.fullmatch(r".*: the prompt has 2\d{5} tokens and context_limit is 20000", unfit(group))
    assert ledger.quarantined == {task.name: f"infrastructure_error: {unfit(group)}"}


class Mended(Ledger):
    """Runs `mend` when the first trial has ended."""

    def __init__(self, path: Path, mend: Callable[[], object]) -> None:
        self._mend, self._once = mend, threading.Lock()
        super().__init__(path)

    def ended(self, trajectory: Trajectory, disposition: str, at: float | None = None) -> None:
        super().ended(trajectory, disposition, at)
        if self._once.acquire(blocking=False):
            self._mend()


@pytest.mark.nightly
@pytest.mark.usefixtures("docker_ready")
async def test_a_build_that_fails_once_costs_no_member(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    dockerfile = folder_of(task) / "environment" / "Dockerfile"
    good = dockerfile.read_text()
    dockerfile.write_text(good + "RUN false\n")
    ledger = Mended(tmp_path / "ledger.jsonl", lambda: dockerfile.write_text(good))
    group = await run_group(tmp_path, task, by_turn, ledger)
    assert group.rewards_G == (1.0,) * len(FAULTS) and not group.lost
    records = lost(tmp_path / "ledger.jsonl")
    assert records and all(r["outcome"] == "infrastructure_error" and r["stage"] == "environment" for r in records)
