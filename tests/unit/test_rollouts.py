"""Batches: limits, retries, what is dropped, what is not run again, and when a batch refuses to go on."""

import asyncio
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harbortrainer.errors import BackendError, EnvironmentFault, UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import UNFIT, unfit
from harbortrainer.rollout.quarantine import SAMPLING, Retries
from harbortrainer.rollout.venue import TrialRequest
from harbortrainer.tasks.task import Task
from tests.support.rollouts_rig import TASKS, TURN, Rig, graded, lost


async def test_groups_in_order_of_tasks_under_one_limit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, graded)
    rig.at_once = 4
    groups = await rig.go()
    assert [group.task_name for group in groups] == ["a", "b", "c"]
    assert [t.trial_name for t in groups[1].trajectories_G] == [f"s000004-p01-g0{g}" for g in range(3)]
    assert rig.most == 4 and sorted(rig.finished) == sorted(rig.names) and len(set(rig.names)) == 9
    assert len({request.seed for request in rig.requests}) == 9
    assert {request.temperature for request in rig.requests} == {0.7}


async def test_seeds_repeat_for_the_same_trial_and_run(tmp_path: Path) -> None:
    seeds = []
    for seed in (1, 1, 2):
        rig = Rig(tmp_path, graded, seed=seed)
        await rig.go()
        seeds.append({request.name: request.seed for request in rig.requests})
    assert seeds[0] == seeds[1] != seeds[2]


async def test_what_an_outage_of_docker_hits_is_run_again_and_no_fault_of_the_trial(tmp_path: Path) -> None:
    up = True

    def run(request: TrialRequest) -> Trajectory:
        nonlocal up
        if request.attempt == 1:
            up = False
            return lost(request)
        if request.attempt == 2 and request.name.startswith("s000004-p00"):
            return lost(request, Outcome.VERIFIER_ERROR)  # a fault of its own: the one that it may have
        return graded(request)

    def ping() -> str | None:
        nonlocal up
        answer, up = None if up else "refused", True
        return answer

    rig = Rig(tmp_path, run, ping=ping, n_parallel_envs=2)
    groups = await rig.go()
    assert [len(group.trajectories_G) for group in groups] == [3, 3, 3]
    assert {t.attempt for group in groups[1:] for t in group.trajectories_G} == {2}
    assert {t.attempt for t in groups[0].trajectories_G} == {3}


async def test_a_task_that_keeps_failing_is_quarantined_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, lambda r: lost(r) if r.task.name == "b" else graded(r), n_parallel_envs=1)
    groups = await rig.go(group_size=8)
    assert [len(group.trajectories_G) for group in groups] == [8, 0, 8]
    tried = [request.name for request in rig.requests if request.task.name == "b"]
    assert 6 <= len(tried) <= 7, "not 8 places x 3 attempts; one may have been under way"
    assert "task b is left out of the run after 6 faults in a row, the last: infrastructure_error" in caplog.text
    assert {name for name, _ in rig.journal.fates if "p01" in name} == set(tried), "who was not started is not booked"
    began = len(rig.requests)
    again = await rig.go(group_size=8)
    assert [len(group.trajectories_G) for group in again] == [8, 0, 8]
    assert not any(request.task.name == "b" for request in rig.requests[began:])
    assert {t.outcome for t in again[1].lost} == {Outcome.CANCELLED}


async def test_a_task_whose_first_prompt_is_too_long_is_left_out_at_once(tmp_path: Path) -> None:
    why = f"{UNFIT}the prompt has 9000 tokens and context_limit is 32000"
    rig = Rig(tmp_path, lambda r: lost(r, detail=why) if r.task.name != "a" else graded(r))
    groups = await rig.go()
    assert [(len(group.trajectories_G), unfit(group)) for group in groups] == [(3, ""), (0, why), (0, why)]
    assert {request.attempt for request in rig.requests} == {1} and {"replaced"}.isdisjoint(
        fate.split()[0] for _, fate in rig.journal.fates
    )
    assert sorted(rig.finished) == [f"s000004-p00-g0{member}" for member in range(3)]
    began = len(rig.requests)
    (again,) = await rig.go(tasks=TASKS[1:2])
    assert len(rig.requests) == began and again.lost[0].detail == why, "it is not tried again"


async def test_a_context_that_is_too_small_for_a_third_of_the_first_tasks_ends_the_run(tmp_path: Path) -> None:
    tasks = [Task(f"t{number:02}", Path("/tasks"), "") for number in range(33)]
    detail = f"{UNFIT}the prompt has 9000 tokens and context_limit is 32000"
    for first, ends in ((10, False), (11, True)):
        bad = {task.name for task in tasks[:first]}
        rig = Rig(tmp_path, lambda r, bad=bad: lost(r, detail=detail) if r.task.name in bad else graded(r))
        if not ends:
            await rig.go(tasks=tasks)
            continue
        with pytest.raises(UserError) as refused:
            await rig.go(tasks=tasks)
        *lines, last = str(refused.value).splitlines()
        assert lines == [*(f"task t0{number}: {detail}" for number in range(5)), "and 6 more"]
        assert re.fullmatch(
            r"context_limit=32000: too small for 11 of the first 1\d tasks; raise it, or leave such tasks out with "
            "tasks_exclude",
            last,
        )


async def test_a_batch_of_one_bad_task_stops_the_run_only_when_nothing_ever_worked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, lambda r: lost(r) if r.task.name == "b" else graded(r))
    with pytest.raises(EnvironmentFault, match="no disk"):
        await rig.go(tasks=TASKS[1:2])
    rig = Rig(tmp_path, lambda r: lost(r) if r.task.name == "b" else graded(r))
    await rig.go(tasks=TASKS[:1])
    (group,) = await rig.go(tasks=TASKS[1:2])
    assert not group.trajectories_G and len(group.lost) == 3


async def test_an_outcome_may_be_replaced_in_training_and_never_in_evaluation(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        return replace(graded(request), outcome=Outcome.MAX_TURNS) if request.attempt == 1 else graded(request)

    rig = Rig(tmp_path, run, outcome_policy={"max_turns": "replace"})
    assert {t.attempt for group in await rig.go() for t in group.trajectories_G} == {2}
    assert {t.attempt for group in await rig.go(training=False) for t in group.trajectories_G} == {1}


async def test_every_trial_is_booked_with_its_fate_after_it_is_stored(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        return lost(request) if request.name == "s000004-p00-g01" or "p02-g00" in request.name else graded(request)

    rig = Rig(tmp_path, run)
    groups = await rig.go()
    assert [(t.trial_name, t.reward) for t in groups[2].lost] == [("s000004-p02-g00-a3", None)]
    assert sorted(name for name, _ in rig.journal.started_trials) == sorted(rig.names)
    fates = dict(rig.journal.fates)
    assert fates["s000004-p00-g01"] == "replaced by s000004-p00-g01-a2" and fates["s000004-p00-g01-a2"] == "graded"
    assert fates["s000004-p02-g00-a3"] == "dropped" and len(fates) == 9 + 1 + 2
    assert rig.journal.stored_first


async def test_trials_of_an_earlier_process_are_not_run_again(tmp_path: Path) -> None:
    first = Rig(tmp_path, lambda r: lost(r) if r.name.endswith("p01-g01") else graded(r, 0.25))
    done = {t.trial_name: t for group in await first.go() for t in group.trajectories_G}
    del done["s000004-p00-g00"]
    failed = "s000004-p02-g02"  # its place was settled without a grade
    done[failed] = lost(next(request for request in first.requests if request.name == failed))
    rig = Rig(tmp_path, graded)
    groups = await rig.go(done=done)
    assert rig.names == ["s000004-p00-g00"]  # the missing one
    assert len(groups[2].trajectories_G) == 2 and [t.trial_name for t in groups[2].lost] == [failed]
    assert [t.reward for t in groups[1].trajectories_G] == [0.25] * 3
    assert groups[1].trajectories_G[1].trial_name == "s000004-p01-g01-a2"
    assert sorted(rig.finished) == sorted(rig.names)


async def test_a_batch_of_nothing_but_faults_is_refused(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        return lost(request, detail="odd" if request.task.name == "a" else "docker is gone")

    with pytest.raises(EnvironmentFault, match=r"no trial .* could be run; .*: docker is gone"):
        await Rig(tmp_path, run).go()
    with pytest.raises(BackendError, match="sampling: no answer"):
        await Rig(tmp_path, lambda r: lost(r, detail=SAMPLING + "no answer")).go()


async def test_an_error_in_our_own_code_stops_the_batch(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        if request.name.endswith("p01-g00"):
            raise RuntimeError("a bug")
        return graded(request)

    rig = Rig(tmp_path, run)
    with pytest.raises(RuntimeError, match="a bug"):
        await rig.go()
    assert rig.running == 0 and len(rig.requests) < 9


async def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "step_000004" / "s000004-p00-g00" / "agent"
    leftover.mkdir(parents=True)
    await Rig(tmp_path, graded).go()
    assert not leftover.exists()


async def test_a_failed_trial_is_recorded_when_the_run_ends_while_docker_is_asked(tmp_path: Path) -> None:
    """Its start is in the journal, so its end must be too; what it sampled was paid for."""
    loop, asked, answer = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def ping() -> None:
        loop.call_soon_threadsafe(asked.set)
        answer.wait(60)

    rig = Rig(tmp_path, lambda request: replace(lost(request), turns=(TURN,)), ping=ping)
    batch = asyncio.create_task(rig.go(group_size=1, tasks=TASKS[:1]))
    await asked.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    answer.set()
    assert [fate for _, fate in rig.journal.fates] == ["cancelled"] and len(rig.journal.started_trials) == 1
    assert rig.journal.last is not None and rig.journal.last.turns == (TURN,)
    assert rig.journal.last.outcome is Outcome.CANCELLED


def silent_server(rig: Rig, sec: float) -> None:
    """Its last sign of life was so long ago."""
    silences = rig.rollouts._settings.sampler._silences
    silences.looked({})
    silences._sign_at = asyncio.get_running_loop().time() - sec


async def test_trials_that_a_silent_server_took_cost_neither_attempt_nor_task_nor_run(tmp_path: Path) -> None:
    """More faults in more than one task than a batch without any grade has patience for."""
    times: dict[str, int] = {}

    def twice_lost(request: TrialRequest) -> Trajectory:
        slot = request.name[:15]
        times[slot] = times.get(slot, 0) + 1
        return lost(request, detail=f"{SAMPLING}no answer within 600 s") if times[slot] <= 2 else graded(request)

    rig = Rig(tmp_path, twice_lost, retries=Retries(attempts=1, faults=1))
    silent_server(rig, 90.0)
    groups = await rig.go()
    assert [len(group.trajectories_G) for group in groups] == [3, 3, 3] and not rig.journal.quarantined
    fates = [fate for _, fate in rig.journal.fates]
    assert sum(fate.endswith("after an outage") for fate in fates) == 18 and fates.count("graded") == 9


async def test_a_server_that_is_silent_for_too_long_or_answers_with_faults_ends_the_run(tmp_path: Path) -> None:
    for silent_sec in (0.0, 200.0):
        folder = tmp_path / str(silent_sec)
        rig = Rig(folder, lambda request: lost(request, detail=f"{SAMPLING}gone"), outage_limit_sec=100.0)
        silent_server(rig, silent_sec)
        with pytest.raises(BackendError, match=r"no trial of the batch could be run; 8 failed"):
            await rig.go()


@pytest.mark.parametrize(("places", "failed"), [(4, 8), (15, 24), (1, 8)])
async def test_a_batch_is_given_up_after_two_waves_on_all_hosts(tmp_path: Path, places: int, failed: int) -> None:
    """`places`: of the hosts that have joined; none is left = 1."""
    rig = Rig(tmp_path, lost, retries=Retries(attempts=9, faults=99))
    rig.rollouts._gates.containers.resize(places)
    with pytest.raises(EnvironmentFault, match=r"no trial of the batch could be run; \d+ failed") as told:
        await rig.go()
    assert failed <= int(str(told.value).split("; ")[1].split()[0]) < failed + 9, "others end at the same moment"
