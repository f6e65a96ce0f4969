"""Batches of real trials: groups, retries, an interrupted batch that goes on, and what `harbor view` reads."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harbor.viewer.scanner import JobScanner

from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.quarantine import RETRIES, Retries
from harbortrainer.rollout.rollouts import Rollouts
from tests.support.docker_parts import containers
from tests.support.fakes import Request, ScriptedClient
from tests.support.trial_parts import RUN, SOLVE, local_host, make_task

pytestmark = pytest.mark.usefixtures("nothing_left")


def made(
    answers: Any, sampler: PolicySampler | None = None, retries: Retries = RETRIES, **fields: Any
) -> tuple[Rollouts, ScriptedClient]:
    host, client = local_host(answers, sampler=sampler, **{"n_parallel_envs": 3} | fields)
    parts = host.parts
    return Rollouts(parts.config, parts.sampler, parts.template, parts.run_id, retries=retries), client


def by_turn(request: Request, client: ScriptedClient) -> str:
    """Solve in one turn, then say done twice: the number of answers so far is in the prompt."""
    said = client.template.tokenizer.decode(request.prompt_T).count("<|im_start|>assistant") - 1
    return SOLVE[min(said, 2)]


async def test_groups_of_two_tasks_and_the_viewers_files(tmp_path: Path) -> None:
    solved = make_task(tmp_path / "tasks", name="a")
    unsolved = make_task(tmp_path / "tasks", name="b", test="echo 0.25 > /logs/verifier/reward.txt\n")
    rollouts, client = made(lambda request: by_turn(request, client))
    finished: list[Trajectory] = []
    folder = tmp_path / "rollouts" / "step_000003"
    groups = await rollouts.run_groups(
        [solved, unsolved], 3, folder, step=3, temperature=0.5, on_trajectory=finished.append
    )
    await rollouts.aclose()
    assert [group.rewards_G for group in groups] == [(1.0,) * 3, (0.25,) * 3]
    assert len(finished) == 6 and {request.temperature for request in client.requests} == {0.5}
    scanner = JobScanner(folder.parent)
    assert scanner.list_jobs() == ["step_000003"]
    assert sorted(scanner.list_trials("step_000003")) == sorted(t.trial_name for t in finished)
    config, result = scanner.get_job_config("step_000003"), scanner.get_job_result("step_000003")
    assert config is not None and result is not None
    assert (result.n_total_trials, result.stats.n_completed_trials, result.stats.n_errored_trials) == (6, 6, 0)


@pytest.mark.nightly
async def test_a_hanging_sampler_is_retried_once_then_dropped_from_its_group(tmp_path: Path) -> None:
    """One trial hangs on both attempts: the first request, and the eighth, after two trials of three turns each."""
    sampler = PolicySampler(request_timeout_sec=3.0)

    def reply(request: Request) -> str | None:
        return None if len(client.requests) in hangs else by_turn(request, client)

    rollouts, client = made(reply, sampler, Retries(attempts=2), n_parallel_envs=1)
    rollouts._gates.containers.resize(1)  # one after another
    hangs = (1, 8)
    groups = await rollouts.run_groups([make_task(tmp_path)], 3, tmp_path / "step_000000", step=0, temperature=1.0)
    await rollouts.aclose()
    assert groups[0].rewards_G == (1.0, 1.0)
    lost = groups[0].lost[0]
    assert lost.trial_name.endswith("-a2")
    assert (lost.attempt, lost.outcome, lost.reward) == (2, Outcome.INFRASTRUCTURE_ERROR, None)


async def test_an_interrupted_batch_goes_on_with_what_was_missing(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    folder = tmp_path / "step_000000"
    done: dict[str, Trajectory] = {}
    enough = asyncio.Event()

    def keep(trajectory: Trajectory) -> None:
        done[trajectory.trial_name] = trajectory
        if len(done) == 2:
            enough.set()

    rollouts, client = made(lambda request: by_turn(request, client), n_parallel_envs=2)
    batch = asyncio.create_task(rollouts.run_groups([task], 6, folder, step=0, temperature=1.0, on_trajectory=keep))
    await enough.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    await rollouts.aclose()
    assert containers(RUN) == []
    before = set(done)
    rerun: list[str] = []
    groups = await rollouts.run_groups(
        [task],
        6,
        folder,
        step=0,
        temperature=1.0,
        done=dict(done),
        on_trajectory=lambda trajectory: rerun.append(trajectory.trial_name),
    )
    await rollouts.aclose()
    assert groups[0].rewards_G == (1.0,) * 6
    assert before.isdisjoint(rerun) and len(before) + len(rerun) == 6
    stored = json.loads((folder / "result.json").read_text())
    assert stored["stats"]["n_completed_trials"] == 6 and stored["stats"]["n_cancelled_trials"] == 0
