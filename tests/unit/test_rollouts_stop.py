"""Batches of a run that is to stop, or that an earlier process began."""

import asyncio
import threading
from pathlib import Path

import pytest

from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.attempts import trial_seed
from harbortrainer.rollout.quarantine import Retries
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.stopping import SIGNAL_STATUS, Stop, Stopped, run_until
from harbortrainer.venues.harbor.trial import TrialRequest
from tests.support.fakes import chat_template
from tests.support.rollouts_rig import Rig, graded, lost


class StoppedRig(Rig):
    """Asks to stop when the n-th trial runs."""

    def __init__(self, folder: Path, nth: int) -> None:
        def run(request: TrialRequest) -> Trajectory:
            if len(self.requests) >= nth:
                self.stop.request("SIGINT", SIGNAL_STATUS)
            return graded(request)

        super().__init__(folder, run)
        self.stop: Stop = self.rollouts._stop
        self.stop.limit(self.rollouts._settings.config, lambda _: None)


async def test_trials_that_run_are_let_end_and_no_other_starts(tmp_path: Path) -> None:
    rig = StoppedRig(tmp_path, 99)
    rig.stop.limit_trials(4, 0)
    with pytest.raises(Stopped, match="max_trials=4"):
        await run_until(rig.go(), rig.stop.stopped(trials=True))
    assert len(rig.requests) == 4
    assert sorted(rig.finished) == sorted(rig.names), "each that began is kept"
    assert dict(rig.journal.fates) == dict.fromkeys(rig.names, "graded")


async def test_the_event_loop_goes_on_while_cancelled_trials_are_recorded(tmp_path: Path) -> None:
    """A slow disk: each record waits until the loop has answered."""
    rig = Rig(tmp_path, graded)
    rig.at_once = 99  # no trial ends
    loop, ended, answered = asyncio.get_running_loop(), rig.journal.ended, list[bool]()

    def slow(trajectory: Trajectory, disposition: str) -> None:
        answer = threading.Event()
        loop.call_soon_threadsafe(answer.set)
        answered.append(answer.wait(60.0))
        ended(trajectory, disposition)

    rig.journal.ended = slow  # type: ignore[method-assign]
    batch = asyncio.create_task(rig.go())
    for _ in range(2000):  # until four run
        await asyncio.sleep(0.001 * (rig.running < 4))
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert [fate for _, fate in rig.journal.fates] == ["cancelled"] * 4 and answered == [True] * 4


async def test_a_limit_that_the_batch_just_meets_does_not_stop_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, graded)
    rig.rollouts._stop.limit_trials(9, started=0)
    assert len(await rig.go()) == 3 and not rig.rollouts._stop.asked


async def test_a_place_goes_on_with_the_attempt_that_an_earlier_process_had_reached(tmp_path: Path) -> None:
    """Names, seeds and the number of attempts are those of an unbroken run."""
    rig = Rig(tmp_path, lambda r: lost(r) if "p00-g00" in r.name else graded(r), seed=3)
    rig.journal.ended_before = {"s000004-p00-g00": (1, 1), "s000004-p01-g01": (2, 2)}
    groups = await rig.go()
    tried = [request for request in rig.requests if "p00-g00" in request.name]
    assert [(r.name, r.attempt) for r in tried] == [("s000004-p00-g00-a2", 2), ("s000004-p00-g00-a3", 3)]
    assert [r.seed for r in tried] == [trial_seed(3, r.name) for r in tried]
    assert groups[1].trajectories_G[1].trial_name == "s000004-p01-g01-a3"
    assert dict(rig.journal.fates)["s000004-p00-g00-a3"] == "dropped"


async def test_an_outcome_that_is_always_replaced_ends_with_max_attempts(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        return Trajectory(request.task.name, request.name, graded(request).turns, 0.0, Outcome.MAX_TURNS)

    rig = Rig(tmp_path, run, retries=Retries(attempts=2), outcome_policy={"max_turns": "replace"})
    await rig.go(group_size=1)
    assert len(rig.requests) == 6 and len(rig.finished) == 3


async def test_faults_of_an_earlier_process_count_towards_the_quarantine(tmp_path: Path) -> None:
    first = Rig(tmp_path, lambda r: lost(r) if r.task.name == "b" else graded(r), retries=Retries(attempts=1))
    before = [t for group in await first.go() for t in group.lost]
    assert len(before) == 3
    rig = Rig(tmp_path, graded)
    again = Rollouts(rig.rollouts._settings.config, PolicySampler(), chat_template(), "run", faults=before * 2)
    assert again._quarantine.reasons == {"b": "infrastructure_error: no disk"}
