"""Evaluations beside updates: one version of the weights each, one row a step, wherever a run ends in between."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.budget.budget import Budget
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError, ServerLost
from harbortrainer.learning.trajectory import TrialName, group_trajectories
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.run.trajectories import read_batch
from harbortrainer.stopping import SIGNAL_STATUS, Stop, Stopped
from harbortrainer.training.evaluation import Evaluations
from harbortrainer.training.rows import StepRows
from tests.support.fake_loop import FakeSampler, Run, ended_within
from tests.support.tiers import first
from tests.support.timed_loop import SlowPolicy, TimedRollouts

STEPS, EVERY = 9, 2  # 3 tasks, 6 epochs, 2 groups a step
EVALUATED = [0, 2, 4, 6, 8, 9]
SETTINGS: dict[str, Any] = {"max_steps_off_policy": 2, "n_epochs": 6, "save_every": 3, "eval_every": EVERY}


class Server:
    """Sampler weights by path; deleted ones are gone."""

    def __init__(self) -> None:
        self.weights: dict[str, int] = {}
        self.processes = 0


class FrozenPolicy(SlowPolicy):
    frozen_samplers = True

    def __init__(self, calls: list[str], server: Server, lose: int = -1) -> None:
        super().__init__(calls)
        self.server, self.lose = server, lose
        self.saved = SimpleNamespace(delete_others=self.delete_others)
        self.begin()

    def begin(self) -> None:
        self.server.processes += 1
        self.model_id = f"m{self.server.processes}"
        self.paths: dict[int, str] = {}

    async def publish(self, step: int) -> Any:
        self.lose -= 1
        if self.lose == 0:
            raise ServerLost("publish: the server does not answer")
        path = f"tinker://{self.model_id}/sampler_weights/{step}"
        self.server.weights[path] = step
        self.paths[step] = path
        return await super().publish(step)

    def retire(self, in_use: Collection[int]) -> None:
        for step in [*self.paths][:-1]:
            if step not in in_use:
                del self.server.weights[self.paths.pop(step)]

    def newest(self) -> tuple[Any, str]:
        step = [*self.paths][-1]
        return SimpleNamespace(version=step), self.paths[step]

    async def sampler_at(self, path: str) -> Any:
        return SimpleNamespace(version=self.server.weights[path]) if path in self.server.weights else None

    def discard(self, path: str) -> None:
        if path not in self.paths.values():
            self.server.weights.pop(path, None)

    async def delete_others(self, model_id: str, keep: set[str]) -> int:
        gone = [path for path in self.server.weights if path.startswith(f"tinker://{model_id}/") and path not in keep]
        for path in gone:
            del self.server.weights[path]
        return len(gone)

    async def reload(self, path: str | None) -> None:
        self.calls.append("reload")
        self.begin()


class PinningSampler(FakeSampler):
    def __init__(self, calls: list[str]) -> None:
        super().__init__(calls)
        self.pins: Counter[int] = Counter()

    @contextlib.contextmanager
    def pinned(self, client: Any, version: int) -> Iterator[Any]:
        assert client.version == version, "the weights of the evaluation's own step"
        self.pins[version] += 1
        yield client
        self.pins[version] -= 1

    @property
    def versions_in_use(self) -> set[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {version for version, pins in self.pins.items() if pins}


class EvaluatedRollouts(TimedRollouts):
    """Trials of an evaluation sample the weights that they are given, `evaluation_sec` long."""

    def __init__(self, sampler: Any, server: Server, evaluation_sec: float = 0.02, **how: Any) -> None:
        super().__init__(sampler, **how)
        self.server, self.evaluation_sec = server, evaluation_sec
        self.evaluating = self.most_evaluating = 0
        self.fail_at = -1
        self.limited: dict[int, bool] = {}
        self.hold: asyncio.Event | None = None

    async def run_groups(self, tasks_P: Any, group_size: int, trials_dir: Path, **how: Any) -> Any:
        step, weights, done = how["step"], how["weights"], how["done"]
        self.sampler.calls.append(f"sample eval {step}")
        self.evaluating += 1
        self.most_evaluating = max(self.evaluating, self.most_evaluating)
        try:
            self.limited[step] = bool(how["at_once"])
            for member in range(group_size):  # one after the other: a kill can be between them
                name = str(TrialName("eval", step, 0, member))
                if name in done:
                    continue
                await asyncio.sleep(self.evaluation_sec / group_size)
                if self.hold is not None:
                    await self.hold.wait()
                if step == self.fail_at:
                    raise BackendError("no trial of the batch could be run")
                assert step in self.server.weights.values(), "weights of an open evaluation are not deleted"
                self.names.append(name)
                trial = self._trial(name, tasks_P[0], member, weights.version)
                how["on_trajectory"](trial)
                done[name] = trial
        finally:
            self.evaluating -= 1
        return [group_trajectories(tasks_P[0].name, [done[name] for name in sorted(done)])]

    def _trial(self, name: str, task: Any, member: int, version: int = -1) -> Any:
        made = super()._trial(name, task, member)
        return replace(made, turns=tuple(replace(turn, weights_version=version) for turn in made.turns))


def made(folder: Path, server: Server, **settings: Any) -> Run:
    folder.mkdir(exist_ok=True)
    records = read_lines(folder / "checkpoints.jsonl") if (folder / "checkpoints.jsonl").exists() else []
    lose = settings.pop("lose", -1)
    rollouts = {"server": server} | settings.pop("rollouts", {})
    given: dict[str, Any] = {"eval_group_size": 3} | SETTINGS | settings
    run = Run(
        folder,
        start_step=records[-1]["step"] if records else 0,
        policy=lambda calls: FrozenPolicy(calls, server, lose),
        kind=EvaluatedRollouts,
        sampler=PinningSampler,
        rollouts=rollouts,
        **given,
    )
    run.trainer.parts.checkpoints.note_model(run.policy.model_id)
    return run


def check(run: Run, server: Server) -> None:
    """What every run that ended leaves."""
    assert [row["global_step"] for row in run.rows] == list(range(STEPS + 1)), "each step has one row, in order"
    assert [row["global_step"] for row in run.rows if "eval/reward_mean" in row] == EVALUATED
    for step in EVALUATED:
        trials = read_batch(run.directory.trajectories("eval", step)).values()
        assert {turn.weights_version for trial in trials for turn in trial.turns} == {step} and len(trials) == 3
    assert not run.directory.pending_row.exists()
    assert not read_lines(run.directory.path / "references.jsonl"), "nothing is kept for an evaluation"
    assert len(server.weights) == 1, "the sampler published last"


async def test_updates_are_made_while_an_evaluation_runs(tmp_path: Path) -> None:
    server = Server()
    run = made(tmp_path, server, rollouts={"evaluation_sec": 0.05})
    await run.trainer.run()
    check(run, server)
    began = [n for n, call in enumerate(run.calls) if call.startswith("sample eval")]
    between = [run.calls[a:b].count("update") for a, b in itertools.pairwise(began)]
    assert sum(between) >= 4 and "drain" not in run.calls
    assert timed(run).most_evaluating == 1, "one after the other"
    assert timed(run).limited[0] and not timed(run).limited[STEPS], "half of the places are training's, while it runs"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110 - of several parts
            await asyncio.sleep(0.005)


def timed(run: Run) -> EvaluatedRollouts:
    assert isinstance(run.rollouts, EvaluatedRollouts)
    return run.rollouts


async def test_a_slow_evaluation_makes_the_next_wait_in_line_and_the_one_after_it_the_trainer(tmp_path: Path) -> None:
    server = Server()
    run = made(tmp_path, server)
    timed(run).hold = hold = asyncio.Event()
    work = asyncio.create_task(run.trainer.run())
    await until(lambda: run.calls.count("update") == 2 * EVERY and run.trainer._evaluations.steps == {0, EVERY})
    await asyncio.wait([work], timeout=0.1)
    assert run.calls.count("update") == 2 * EVERY, "the third one, after step 4, waits for a place"
    assert [call for call in run.calls if call.startswith("sample eval")] == ["sample eval 0"]
    assert run.rows == [], "rows wait for the first one"
    hold.set()
    await work
    check(run, server)


@pytest.mark.parametrize("seed", first(2, range(4)))
async def test_killed_anywhere_an_evaluation_ends_with_its_own_weights(tmp_path: Path, seed: int) -> None:
    rng, server = random.Random(seed), Server()
    names: Counter[str] = Counter()
    run, process, over = made(tmp_path, server), 0, False
    while not over:
        process += 1
        over = await ended_within(run, rng.uniform(0.0, 0.04 * process))
        names.update(run.rollouts.names)
        if not over:
            leave_orphans(run, server)
            run = made(tmp_path, server)
    check(run, server)
    assert set(names.values()) == {1}, "no trial is run twice"


async def test_killed_again_while_it_takes_up_open_evaluations_no_row_is_lost(tmp_path: Path) -> None:
    server, asked = Server(), asyncio.Event()
    run = made(tmp_path, server, save_every=1)
    timed(run).hold = asyncio.Event()  # the evaluation at the start: the rows after it wait
    await killed(run, until(lambda: "save 3" in run.calls))
    leave_orphans(run, server)
    again = made(tmp_path, server, save_every=1)

    async def no_answer(_: str) -> Any:
        asked.set()
        await asyncio.Event().wait()

    again.policy.sampler_at = no_answer  # pyright: ignore[reportAttributeAccessIssue]
    await killed(again, asked.wait())
    leave_orphans(again, server)
    last = made(tmp_path, server, save_every=1)
    await last.trainer.run()
    check(last, server)


async def killed(run: Run, when: Coroutine[Any, Any, Any]) -> None:
    work = asyncio.create_task(run.trainer.run())
    await when
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def leave_orphans(run: Run, server: Server) -> None:
    """The next process deletes what the killed one published, but for what its journals name."""
    keep = run.trainer.parts.checkpoints.paths
    for path in [path for path in server.weights if path not in keep]:
        del server.weights[path]


@pytest.mark.parametrize("after", first(1, [0.06, 0.01]))
async def test_a_stopped_run_goes_on_with_its_evaluations(tmp_path: Path, after: float) -> None:
    server = Server()
    run = made(tmp_path, server)
    asyncio.get_running_loop().call_later(after, run.stop.request, "SIGINT", SIGNAL_STATUS)
    with pytest.raises(Stopped):
        await run.trainer.run()
    assert timed(run).evaluating == 0
    leave_orphans(run, server)
    again = made(tmp_path, server)
    await again.trainer.run()
    check(again, server)
    assert not set(run.rollouts.names) & set(again.rollouts.names)


@pytest.mark.parametrize("nth", first(1, [4, 2, 7]))
async def test_a_lost_server_changes_nothing(tmp_path: Path, nth: int) -> None:
    server = Server()
    run = made(tmp_path, server, lose=nth)
    await run.trainer.run()
    assert "reload" in run.calls
    check(run, server)
    assert set(Counter(run.rollouts.names).values()) == {1}


@pytest.mark.parametrize("turns", range(8))
async def test_the_last_evaluation_may_end_while_the_run_begins_to_wait_for_it(turns: int) -> None:
    sampler: Any = SimpleNamespace(version=0)
    policy: Any = SimpleNamespace(frozen_samplers=False)
    nothing: Any = None

    async def evaluate(*_: object) -> None:
        for _turn in range(turns):  # of the event loop
            await asyncio.sleep(0)

    async with Evaluations(policy, sampler, nothing, Stop()) as evaluations:
        assert await evaluations.open(0, evaluate)
        await evaluations.over()
        assert not evaluations.steps


async def test_a_failing_evaluation_ends_the_run(tmp_path: Path) -> None:
    server = Server()
    run = made(tmp_path, server)
    timed(run).fail_at = 2
    with pytest.raises(BackendError, match="no trial of the batch"):
        await run.trainer.run()
    assert timed(run).running == 0
    leave_orphans(run, server)
    again = made(tmp_path, server)
    await again.trainer.run()
    check(again, server)


async def test_an_evaluation_whose_weights_are_gone_is_left_out_with_a_line(tmp_path: Path) -> None:
    server, said = Server(), []
    run = made(tmp_path, server, save_every=1, max_steps=3)
    timed(run).hold = asyncio.Event()
    await killed(run, until(lambda: "save 2" in run.calls))
    server.weights.clear()
    again = made(tmp_path, server, save_every=1, max_steps=3)
    again.trainer.parts.display.say = said.append  # pyright: ignore[reportAttributeAccessIssue]
    await again.trainer.run()
    assert [row["global_step"] for row in again.rows] == [0, 1, 2, 3]
    assert [row["global_step"] for row in again.rows if "eval/reward_mean" in row] == [2, 3]
    assert "held-out after step 0: the server has lost its weights; no evaluation" in said


async def test_a_state_stays_until_its_evaluation_says_whether_it_is_among_the_best(tmp_path: Path) -> None:
    server = Server()
    run = made(tmp_path, server, save_every=1, eval_every=1, keep_checkpoints=1, max_steps=6)
    rewards = {3: 1.0}

    def scored(groups_P: Any) -> dict[str, float]:
        (trial, *_) = groups_P[0].trajectories_G
        return {"eval/reward_mean": rewards.get(TrialName.parse(trial.trial_name).step, 0.0)}

    object.__setattr__(run.trainer._breakdown, "evaluation", scored)
    await run.trainer.run()
    assert [record["step"] for record in read_lines(run.directory.checkpoints)] == [3, 6]


def test_a_row_that_was_logged_before_a_kill_leaves_the_disk(tmp_path: Path) -> None:
    """Otherwise a complete run would never be known as complete."""
    run = RunDirectory(tmp_path)
    rows = StepRows(run, MetricsLog(run), Budget())
    rows.open(3, {"reward/mean": 0.5})
    rows.keep()
    stored = run.pending_row.read_text()
    rows.log(3, {})
    run.pending_row.write_text(stored)
    assert StepRows(run, MetricsLog(run), Budget()).kept(3) == [] and not run.pending_row.exists()
