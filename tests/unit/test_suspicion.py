"""Marks on rewards that may not come from the work: the rules, what training does with a mark, and where it is kept."""

import json
import random
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import TrialConfig

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.suspicion import (
    LEAST_TIMES,
    NEW_NORMAL,
    VERIFICATION,
    Past,
    Verifications,
    described,
    jump,
    marked,
)
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, TrialName, Turn, group_trajectories
from harbortrainer.learning.treatment import outcome_policy, outcome_problems
from harbortrainer.replay.arguments import parse as replay_arguments
from harbortrainer.replay.replay import replay
from harbortrainer.report.run import read_run
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.metrics import eval_metrics, outcome_metrics
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from harbortrainer.train import parse
from harbortrainer.training.session import run_training
from harbortrainer.venues.harbor import HarborVenue
from tests.support import recorded_run
from tests.support.tiers import first

TURN = Turn(0, (1,), (2, 3), (-0.5, -0.5), 0)


def trial(name: str, reward: float = 1.0, seconds: float = 0.0, *suspect: str) -> Trajectory:
    stats = {VERIFICATION: seconds} if seconds else {}
    return Trajectory("t", name, (TURN,), reward, Outcome.COMPLETED, stats=stats, suspect=suspect)


def batch(step: int, rewards: list[float], kind: str = "s") -> TrajectoryGroup:
    return group_trajectories("t", [trial(f"{kind}{step:06d}-p00-g{n:02d}", r) for n, r in enumerate(rewards)])


def kept(path: Path, groups: list[TrajectoryGroup]) -> Ledger:
    path.mkdir(exist_ok=True)
    ledger = Ledger(path / "ledger.jsonl")
    for group in groups:
        for one in group.trajectories_G:
            ledger.started(one.trial_name, "t", 1)
            ledger.ended(one, "graded")
    return ledger


def usual(*seconds: float) -> Verifications:
    known = Verifications()
    for one in seconds:
        known.add(one)
    return known


def test_a_verification_far_below_the_tasks_own_past_is_quick() -> None:
    known = usual(*(4.0 + 0.1 * n for n in range(LEAST_TIMES)))
    assert known.why_quick(0.3) == "verified in 0.30 s, usually 4.35 s"
    assert known.why_quick(1.0) == "", "a fifth of the median is needed"
    assert usual(*[4.0] * (LEAST_TIMES - 1)).why_quick(0.1) == "", "too short a past"
    assert usual(*[0.4] * 20).why_quick(0.01) == "", "less than half a second"
    assert usual(*[1.0, 2.0, 4.0, 8.0] * 5).why_quick(0.1) == "", "times that scatter with the load"


def test_quick_ones_stay_quick_until_they_are_all_there_is() -> None:
    known = usual(*[4.0] * 20)
    for _ in range(NEW_NORMAL - 1):
        assert known.why_quick(0.2)
        known.add(0.2)
    known.add(0.2)
    assert known.why_quick(0.2) == ""
    mixed = usual(*[4.0] * 20, *[0.2, 0.2, 0.2, 4.0] * 40)
    assert mixed.why_quick(0.2), "an honest trial between them"


def test_only_rewarded_trials_are_compared_by_time() -> None:
    past = Past()
    for n in range(20):
        past.add(f"s{n:06d}-p00-g00", "t", 1.0, 4.0)
        past.add(f"e{n:06d}-p00-g00", "t", 0.0, 0.1)
    assert past.of_trial(trial("s000030-p00-g00", 1.0, 0.1))
    assert past.of_trial(trial("e000030-p00-g00", 1.0, 0.1)), "evaluation too"
    assert past.of_trial(trial("s000030-p00-g00", 0.0, 0.1)) == ""
    assert past.of_trial(trial("s000030-p00-g00", 1.0)) == "", "no time is known"
    assert past.of_trial(replace(trial("s000030-p00-g00", 1.0, 0.1), task_name="u")) == ""


@pytest.mark.parametrize(
    ("past", "now", "is_jump"),
    [
        ([[0.0] * 8] * 6, [1.0] * 8, True),
        ([[0.0] * 7 + [1.0]] * 5, [1.0] * 8, True),
        ([[0.0] * 4] * 8, [1.0] * 4, True),
        ([[0.0] * 16] * 2, [1.0] * 12 + [0.0] * 4, True),
        ([[0.0] * 8] * 2, [1.0] * 8, False),  # too short a past
        ([[0.0] * 32], [1.0] * 8, False),  # one step only
        ([[0.0] * 8] * 6, [1.0] * 2 + [0.0] * 6, False),
        ([[0.0] * 4 + [1.0] * 4] * 6, [1.0] * 8, False),
        ([[0.0] * 8] * 20 + [[0.0] * 6 + [1.0] * 2, [0.0] * 4 + [1.0] * 4], [1.0] * 8, False),  # it was rising
        ([[0.1] * 8] * 6, [0.2] * 8, False),
        ([[0.0, 5.0] * 4] * 6, [10.0] * 8, False),  # rewards above 1: of the largest
        ([[-1.0] * 8] * 6, [1.0] * 8, True),
        ([[0.0] * 8] * 6, [], False),
    ],
)
def test_a_jump_is_what_neither_chance_nor_learning_explains(
    past: list[list[float]], now: list[float], is_jump: bool
) -> None:
    reason = jump(past, now)
    assert bool(reason) is is_jump
    if is_jump:
        assert reason.startswith("mean reward of the task jumped from ") and "\n" not in reason


def false_alarms(random_: random.Random, gain: float, tasks: int) -> tuple[int, int]:
    """Jumps, and groups, of tasks whose log-odds rise by `gain` from each batch to the next after a flat stretch."""
    found = groups = 0
    for _ in range(tasks):
        size, log_odds, flat = random_.choice((4, 8, 16)), random_.uniform(-5, 0), random_.randrange(12)
        past: list[list[float]] = []
        for visit in range(30):
            log_odds = min(log_odds + gain * (visit >= flat), 4.0)
            now = [float(random_.random() < 1 / (1 + exp(-log_odds))) for _ in range(size)]
            found += bool(jump(past, now))
            groups += 1
            past.append(now)
    return found, groups


@pytest.mark.parametrize(("gain", "most"), first(2, [(0.0, 0), (0.5, 2), (0.2, 1), (1.0, 3)]))
def test_ordinary_learning_gives_hardly_any_false_alarm(gain: float, most: int) -> None:
    found, groups = false_alarms(random.Random(1), gain, 100)
    assert groups == 3000 and found <= most


def test_the_rewarded_trials_of_a_jump_are_marked_and_earlier_steps_are_the_past(tmp_path: Path) -> None:
    ledger = kept(tmp_path, [batch(step, [0.0] * 8) for step in range(4)])
    hacked = batch(4, [1.0] * 7 + [0.0])
    (judged,) = ledger.judged(4, [hacked])
    assert [bool(one.suspect) for one in judged.trajectories_G] == [True] * 7 + [False]
    assert Ledger(tmp_path / "ledger.jsonl").judged(4, [hacked]) == [judged], "a resumed run has the same past"
    early = batch(2, [1.0] * 7 + [0.0])
    assert ledger.judged(2, [early]) == [early], "two earlier steps are no past"
    later = kept(tmp_path, [batch(4, [1.0] * 8)])
    assert later.judged(4, [hacked]) == [judged], "its own trials are no past"


def test_a_journal_of_an_earlier_version_has_a_past_of_rewards_and_none_of_times(tmp_path: Path) -> None:
    kept(tmp_path, [batch(step, [0.0] * 8) for step in range(4)])
    lines = read_lines(tmp_path / "ledger.jsonl")
    assert not any({"suspect", "verification_sec"} & line.keys() for line in lines), "written only where there is one"
    assert Ledger(tmp_path / "ledger.jsonl").suspicion(trial("s000004-p00-g00", 1.0, 0.1)) == ""


def test_marks_and_times_survive_a_resume(tmp_path: Path) -> None:
    groups = [group_trajectories("t", [trial(f"s{n:06d}-p00-g00", 1.0, 4.0)]) for n in range(10)]
    quick = trial("s000010-p00-g00", 1.0, 0.2)
    ledger = kept(tmp_path, groups)
    reason = ledger.suspicion(quick)
    assert reason == Ledger(tmp_path / "ledger.jsonl").suspicion(quick) == "verified in 0.20 s, usually 4.00 s"
    ledger.ended(replace(quick, suspect=(reason,)), "graded")
    line = read_lines(tmp_path / "ledger.jsonl")[-1]
    assert (line["suspect"], line["verification_sec"]) == ([reason], 0.2)
    for one in (ledger, Ledger(tmp_path / "ledger.jsonl")):
        assert one.summary().endswith("0 trained; 1 suspect")
    stored = read_trajectory(write_trajectory(tmp_path, replace(quick, suspect=(reason,))))
    assert stored.suspect == (reason,)


def test_a_repeated_step_has_the_marks_that_it_was_trained_with(tmp_path: Path) -> None:
    """Also where today's rules would mark other trials."""
    ledger = kept(tmp_path, [batch(step, [0.0] * 8) for step in range(4)])
    fresh = batch(4, [1.0] * 8)
    config = Config(model_name="m", tasks_dir=".", outcome_policy={"suspect": "mask"})
    judged = ledger.judged(4, [fresh])
    made = assemble(judged, config)
    assert (list(made.masked), made.advantages) == ([one.trial_name for one in fresh.trajectories_G], {})
    ledger.trained(4, made, [])
    assert read_lines(tmp_path / "ledger.jsonl")[-1]["suspect"].keys() == set(made.masked)
    again = Ledger(tmp_path / "ledger.jsonl")
    again.resumed(4)
    assert again.judged(4, [fresh]) == judged
    assert again.counts["suspect"] == 8
    unmarked = kept(tmp_path / "old", [batch(step, [0.0] * 8) for step in range(4)])
    unmarked.trained(4, assemble([fresh], config), [])  # by an earlier version
    assert Ledger(tmp_path / "old" / "ledger.jsonl").judged(4, [fresh]) == [fresh]


@pytest.mark.parametrize(
    ("changes", "rewards"),
    [
        ({}, {"g0": 1.0, "g1": 0.5}),
        ({"suspect": "train"}, {"g0": 1.0, "g1": 0.5}),
        ({"suspect": "mask"}, {"g1": 0.5}),
        ({"suspect": "-0.5"}, {"g0": -0.5, "g1": 0.5}),
        ({"suspect": 0, "completed": 0.25}, {"g0": 0.0, "g1": 0.25}),
        ({"suspect": "train", "completed": "0.25"}, {"g0": 0.25, "g1": 0.25}),
        ({"suspect": 1, "completed": "mask"}, {}),
        ({"suspect": "mask", "completed": "replace"}, {}),
    ],
)
def test_suspect_trials_are_trained_on_masked_or_have_their_own_reward(
    changes: dict[str, object], rewards: dict[str, float]
) -> None:
    assert outcome_problems(changes) == []
    group = group_trajectories("t", [trial("g0", 1.0, 0.0, "odd"), trial("g1", 0.5)])
    treated = outcome_policy(changes).treat(group)
    assert {one.trial_name: one.reward for one in treated.trajectories_G} == rewards


@pytest.mark.parametrize("value", ["replace", "drop", "nan", True])
def test_what_cannot_be_done_with_a_suspect_trial_is_refused_in_one_line(value: object) -> None:
    (line,) = outcome_problems({"suspect": value})
    assert line.startswith(f"outcome_policy.suspect={value}: ") and line.endswith("give train, mask, or a reward")


class HackedTrial(recorded_run.FakeTrial):
    """Earns nothing before step 4, everything from then on."""

    async def _act(self) -> Any:
        result = await super()._act()
        name = TrialName.parse(self._config.agent.kwargs["llm_kwargs"]["name"])
        result.exception_info = None
        result.verifier_result.rewards["reward"] = float(name.step >= 4 and name.member > 0)
        return result


async def test_a_run_says_masks_and_counts_a_jump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = recorded_run.Recorder()

    async def new_trial(config: TrialConfig) -> Any:
        return HackedTrial(config, recorder)

    words = {
        "backend": "skyrl-tx", "skyrl_tx_url": "http://here:1", "model_name": "models/one", "batch_size": 1,
        "tasks_dir": "datasets/quickstart", "tasks_include": "count-1", "group_size": 8, "n_epochs": 5,
        "logs_dir": tmp_path, "run_name": "run", "outcome_policy.suspect": "mask", "display": "plain",
    }  # fmt: skip
    config = parse([f"{name}={value}" for name, value in words.items()])
    outside = recorded_run.fake_outside(recorder)
    venue = HarborVenue(recorded_run.FakeHost(recorder), new_trial)
    await run_training(config, outside=replace(outside, venues={"harbor": venue}))
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["rollout/suspect"] for row in rows] == [0.0] * 4 + [7.0]
    assert [row["group/trials_masked"] for row in rows] == [0.0] * 4 + [7.0]
    said = [line for line in capsys.readouterr().out.splitlines() if "suspect" in line]
    assert "step 5: suspect trials: 7 (s000004-p00-g01 of count-1: mean reward of the task jumped from 0.00" in said[0]
    assert len(said) == 2 and said[1].endswith("; 7 suspect"), "the second is the summary"
    settings = replay_arguments([str(tmp_path / "run"), "outcome_policy.suspect=train"])
    report = replay(RunDirectory(tmp_path / "run"), settings)
    assert report.rebuilt and [step.datums_changed for step in report.steps] == [0] * 4 + [8]


def test_a_mark_is_counted_and_described_in_one_line() -> None:
    groups = [group_trajectories("t", [trial(f"g{n}", 1.0, 0.0, "odd") for n in range(5)])]
    assert described(groups) == "suspect trials: 5 (g0 of t: odd, g1 of t: odd, g2 of t: odd and 2 more)"
    assert described([batch(0, [1.0])]) == ""
    assert outcome_metrics(groups[0].trajectories_G)["rollout/suspect"] == 5.0
    assert eval_metrics(groups)["eval/trials_suspect"] == 5.0
    assert marked(groups, {"g0": ["odd", "more"]})[0].trajectories_G[0].suspect == ("odd", "more")


def test_the_report_has_a_column_and_counts_of_suspect_trials(tmp_path: Path) -> None:
    ledger = kept(tmp_path, [batch(step, [0.0] * 8) for step in range(4)])
    held = trial(str(TrialName("eval", 4, 0, 0)), 1.0, 0.0, "verified in 0.20 s, usually 4.00 s")
    ledger.ended(held, "graded")
    (tmp_path / "config.json").write_text(json.dumps({"model_name": "m"}))
    assert "suspect" not in read_run(tmp_path).shown["funnel"]["training"]
    made = assemble(ledger.judged(4, [batch(4, [1.0] * 8)]), Config(model_name="m", tasks_dir="."))
    for one in batch(4, [1.0] * 8).trajectories_G:
        ledger.ended(one, "graded")
    ledger.trained(4, made, [])
    shown = read_run(tmp_path).shown
    assert (shown["funnel"]["training"]["suspect"], shown["funnel"]["evaluation"]["suspect"]) == (8, 1)
    reasons = {shown["trials"]["texts"][index] for index in shown["trials"]["suspect"]}
    assert {reason for reason in reasons if reason} == {
        "verified in 0.20 s, usually 4.00 s",
        "mean reward of the task jumped from 0.00 to 1.00",
    }
