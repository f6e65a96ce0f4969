"""A trial's way through the gates: one place at a time, its clock stopped while it waits, nothing kept at the end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harbor.models.task.config import TaskConfig
from harbor.trial.hooks import TrialEvent

from harbortrainer.config import Config
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.checks.host import ServiceHost
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.integrity.cause import Verdict
from harbortrainer.docker.integrity.solution import SOLUTION_SEC
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.slots import Slots
from harbortrainer.venues.harbor.grading import VERIFICATIONS, most_limits
from harbortrainer.venues.harbor.phases import GRADING_SLACK_SEC, Phases

STEPS = 'version = "1.0"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
SEPARATE = 'version = "1.0"\n[verifier]\nenvironment_mode = "separate"\n'


class Environment(DockerEngineEnvironment):
    """Without a container."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.verdict = Verdict()
        self.lost = ""

    async def open_agent_phase(self) -> None:
        self.calls.append("open")

    async def close_agent_phase(self, *, final: bool) -> None:
        await asyncio.sleep(0.02)
        self.calls.append("end" if final else "stop")


class FakeTrial:
    verifier_timeout_sec = 5.0

    def __init__(self, toml: str = 'version = "1.0"\n') -> None:
        self.hooks: dict[TrialEvent, Any] = {}
        self.add_hook = self.hooks.__setitem__
        self.agent_environment = Environment()
        self.task = SimpleNamespace(config=TaskConfig.model_validate_toml(toml))

    async def reach(self, *events: TrialEvent) -> None:
        for event in events:
            await self.hooks[event](None)


def phases_of(
    trial: FakeTrial, gates: Gates, limit_sec: float = 0.0, lost: Callable[[], float] = lambda: 0.0
) -> tuple[Phases, Any]:
    llm: Any = SimpleNamespace(deadline=None, lost=lost)
    fake: Any = trial
    return Phases(fake, llm, gates, Daemon(1.0, ServiceHost().ping), limit_sec), llm


def gates_of(**fields: Any) -> Gates:
    return Gates.of(Config(model_name="m", tasks_dir=".", **fields))


async def pass_once() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_agents_that_are_held_wait_for_weights_with_their_clock_stopped() -> None:
    gates = gates_of(n_parallel_envs=1)
    trial = FakeTrial()
    phases, _ = phases_of(trial, gates, limit_sec=60.0)
    gates.weights.clear()
    async with phases.clock:
        due = phases.clock.due
        await trial.reach(TrialEvent.ENVIRONMENT_START)
        agent = asyncio.create_task(trial.reach(TrialEvent.AGENT_START))
        await pass_once()
        assert not agent.done() and phases.clock.due is None, "its environment runs, its clock does not"
        assert gates.running.taken < gates.running.limit and trial.agent_environment.calls == []
        gates.weights.set()
        await agent
        assert trial.agent_environment.calls == ["open"] and gates.running.taken == gates.running.limit
        assert due is not None and (phases.clock.due or 0) >= due
    phases.leave()


async def test_a_place_is_held_for_its_phase_only() -> None:
    gates = replace(gates_of(n_parallel_envs=1), starting=Slots(1))
    first, second = FakeTrial(), FakeTrial()
    one, two = phases_of(first, gates)[0], phases_of(second, gates)[0]
    async with one.clock, two.clock:
        await first.reach(TrialEvent.ENVIRONMENT_START)
        starting = asyncio.create_task(second.reach(TrialEvent.ENVIRONMENT_START))
        await pass_once()
        assert not starting.done(), "one start at once"
        await first.reach(TrialEvent.AGENT_START)
        await starting  # while the first one's agent runs
        running = asyncio.create_task(second.reach(TrialEvent.AGENT_START))
        await pass_once()
        assert not running.done() and second.agent_environment.calls == [], "one agent at once"
        await first.reach(TrialEvent.AGENT_END, TrialEvent.VERIFICATION_START)
        await running  # while the first one is verified
        await second.reach(TrialEvent.AGENT_END)
        verifying = asyncio.create_task(second.reach(TrialEvent.VERIFICATION_START))
        await pass_once()
        assert not verifying.done(), "one verifier at once"
        one.leave()
        await verifying
        two.leave()
    assert first.agent_environment.calls == second.agent_environment.calls == ["open", "end"]
    assert not any(gate.taken for gate in (gates.running, gates.verifying))


async def test_waiting_for_a_place_is_not_the_trials_time() -> None:
    gates = gates_of(n_parallel_envs=1)
    await gates.running.acquire()
    trial, limit, away = FakeTrial(), 0.6, 0.8
    phases, llm = phases_of(trial, gates, limit_sec=limit)
    seen = False
    with pytest.raises(TimeoutError):
        async with phases.clock:
            await trial.reach(TrialEvent.ENVIRONMENT_START)
            waiting = asyncio.create_task(trial.reach(TrialEvent.AGENT_START))
            before, earlier = phases.clock.due, phases.waited
            assert before is not None
            await asyncio.sleep(away)  # beyond the limit
            gates.running.release()
            await waiting
            assert phases.waited > limit and (due := phases.clock.due) is not None
            assert due == pytest.approx(before + phases.waited - earlier, abs=1e-6)
            assert llm.deadline == pytest.approx(due - limit / 4)
            seen = True
            await asyncio.sleep(600)  # the clock runs again
    assert seen


@pytest.mark.parametrize(("limit", "task", "expected"), [(60.0, 20.0, 20.0), (12.0, 20.0, 9.0), (0.0, 20.0, 20.0)])
async def test_the_agent_has_the_shorter_of_two_limits_and_what_is_lost_counts_for_none(
    limit: float, task: float, expected: float
) -> None:
    lost = 0.0
    trial = FakeTrial(f'version = "1.0"\n[agent]\ntimeout_sec = {task}\n')
    phases, llm = phases_of(trial, gates_of(), limit, lambda: lost)
    async with phases.clock:
        await trial.reach(TrialEvent.ENVIRONMENT_START, TrialEvent.AGENT_START)
        assert llm.deadline == pytest.approx(asyncio.get_running_loop().time() + expected, abs=1.0)
        if (due := phases.clock.due) is not None:
            lost = 7.0
            assert phases.clock.due == pytest.approx(due + 7)
    phases.leave()


async def test_each_step_has_its_own_limit() -> None:
    trial = FakeTrial(STEPS.replace('"two"\n', '"two"\nagent = {timeout_sec = 5}\n') + "[agent]\ntimeout_sec = 50\n")
    phases, llm = phases_of(trial, gates_of())
    found = list[float]()
    async with phases.clock:
        await trial.reach(TrialEvent.ENVIRONMENT_START)
        for _ in range(2):
            await trial.reach(TrialEvent.AGENT_START, TrialEvent.AGENT_END, TrialEvent.VERIFICATION_START)
            found.append(llm.deadline - asyncio.get_running_loop().time())
    phases.leave()
    assert found == [pytest.approx(50, abs=1.0), pytest.approx(5, abs=1.0)]


async def test_a_trial_that_ends_anywhere_keeps_no_place() -> None:
    gates = replace(gates_of(n_parallel_envs=1), starting=Slots(1))
    events = [TrialEvent.ENVIRONMENT_START, TrialEvent.AGENT_START, TrialEvent.AGENT_END, TrialEvent.VERIFICATION_START]
    for n in range(1, 5):
        trial = FakeTrial()
        phases, _ = phases_of(trial, gates)
        async with phases.clock:
            await trial.reach(*events[:n])
            phases.leave()
            phases.leave()
    assert gates.running.taken < gates.running.limit and gates.verifying.taken < gates.verifying.limit
    await asyncio.wait_for(gates.starting.acquire(), 600)


@pytest.mark.parametrize(
    ("toml", "rounds", "calls"),
    [
        (STEPS, 2, ["open", "stop", "open", "end"]),  # the second step goes on in the terminal of the first
        (SEPARATE, 1, ["open"]),  # graded in another container
    ],
)
async def test_agents_are_ended_where_they_could_touch_the_reward(toml: str, rounds: int, calls: list[str]) -> None:
    trial = FakeTrial(toml)
    phases, _ = phases_of(trial, gates_of())
    async with phases.clock:
        await trial.reach(TrialEvent.ENVIRONMENT_START)
        for _ in range(rounds):
            await trial.reach(TrialEvent.AGENT_START, TrialEvent.AGENT_END, TrialEvent.VERIFICATION_START)
    phases.leave()
    assert trial.agent_environment.calls == calls


async def test_a_separate_verifier_does_not_grade_what_was_lost_with_its_container() -> None:
    trial = FakeTrial(SEPARATE)
    phases, _ = phases_of(trial, gates_of())
    async with phases.clock:
        await trial.reach(TrialEvent.ENVIRONMENT_START, TrialEvent.AGENT_START, TrialEvent.AGENT_END)
        trial.agent_environment.lost = "container ht-x went away"
        with pytest.raises(RuntimeError, match="ht-x went away"):
            await trial.reach(TrialEvent.VERIFICATION_START)
    phases.leave()


async def test_verification_has_its_whole_limit_and_the_next_agent_no_more_time() -> None:
    """Who makes verification hang until the trial is over would otherwise have no grade."""
    trial = FakeTrial(STEPS)
    trial.verifier_timeout_sec = 500.0
    phases, llm = phases_of(trial, gates_of(n_parallel_envs=1), limit_sec=60.0)
    async with phases.clock:
        await trial.reach(TrialEvent.ENVIRONMENT_START, TrialEvent.AGENT_START)
        first = llm.deadline
        await trial.reach(TrialEvent.AGENT_END)
        now = asyncio.get_running_loop().time()
        assert phases.clock.due == pytest.approx(now + 500 + GRADING_SLACK_SEC, abs=1.0)
        await trial.reach(TrialEvent.AGENT_START)
        assert llm.deadline == pytest.approx(first, abs=1.0)
    phases.leave()


LIMITS = """[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 100.0
[[steps]]
name = "a"
[steps.verifier]
timeout_sec = 10.0
"""


@pytest.mark.parametrize(
    ("toml", "needed"),
    [(LIMITS, (10.0, 900.0)), ("[verifier]\ntimeout_sec = 20.0\n", (20.0, SOLUTION_SEC))],
)
def test_harbors_limit_has_room_for_the_tasks_solution(toml: str, needed: tuple[float, float]) -> None:
    """The first trial that needs to know what a task asks for runs its solution, within verification."""
    own, solution = needed
    times = most_limits(TaskConfig.model_validate_toml(toml))
    assert times * own >= VERIFICATIONS * own + solution
