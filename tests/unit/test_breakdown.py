"""Numbers by domain and source: which columns there are, and what is in them."""

from dataclasses import replace
from pathlib import Path

import pytest

from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, Turn, group_trajectories
from harbortrainer.run.metrics import MOST, OTHER, Breakdown
from harbortrainer.stats import estimate_reward
from harbortrainer.tasks.task import Task


def task(name: str, domain: str = "d", source: str = "s") -> Task:
    return Task(name, Path(name), name, source, domain)


def group(name: str, *rewards: float | None) -> TrajectoryGroup:
    return group_trajectories(name, [trial(name, reward) for reward in rewards])


def trial(task_name: str, reward: float | None) -> Trajectory:
    outcome = Outcome.CANCELLED if reward is None else Outcome.COMPLETED
    return Trajectory(task_name, "trial", (Turn(0, (1,), (2,), (-0.5,), 0),), reward, outcome)


GROUPS = [group("a", 1.0, 0.0), group("b", 1.0, 1.0), group("c", 0.0, None)]


def test_a_run_of_one_domain_and_source_has_no_columns():
    one = Breakdown([task("a"), task("b"), task("c")])
    assert one.batch(GROUPS) == one.evaluation(GROUPS) == {}


def test_training_numbers_are_those_of_the_part():
    parts = Breakdown([task("a", "text"), task("b", "git"), task("c", "git")])
    assert parts.batch(GROUPS) == {
        "reward/mean/domain/git": pytest.approx(2 / 3),
        "group/count/domain/git": 2.0,
        "group/constant_fraction/domain/git": 1.0,
        "reward/mean/domain/text": 0.5,
        "group/count/domain/text": 1.0,
        "group/constant_fraction/domain/text": 0.0,
    }


def test_what_nobody_graded_has_no_mean():
    parts = Breakdown([task("a", "text"), task("lost", "git")])
    lost = [group("lost", None, None)]
    assert "reward/mean/domain/git" not in parts.batch(lost)
    assert parts.evaluation(lost) == {"eval/tasks/domain/git": 0.0}


def test_an_evaluation_has_intervals_where_two_tasks_were_graded():
    parts = Breakdown([task("a", "text"), task("b", "git"), task("c", "git")])
    found = parts.evaluation(GROUPS)
    git = estimate_reward([(1.0, 1.0), (0.0,)], [0, 1])
    assert found["eval/reward_mean/domain/git"] == git.mean == 0.5
    assert (found["eval/reward_low/domain/git"], found["eval/reward_high/domain/git"]) == (git.low, git.high)
    assert found["eval/reward_mean/domain/text"] == 0.5 and "eval/reward_low/domain/text" not in found


def test_domains_that_are_only_the_sources_again_are_told_once():
    parts = Breakdown([task("a", "one", "one"), task("b", "two", "two"), task("c", "two", "two")])
    assert {name.split("/")[2] for name in parts.batch(GROUPS)} == {"source"}
    both = Breakdown([task("a", "git", "one"), task("b", "git", "two"), task("c", "text", "two")])
    assert {name.split("/")[2] for name in both.batch(GROUPS)} == {"source", "domain"}


def test_each_agent_of_several_has_its_columns():
    parts = Breakdown([task("a"), task("b")], "codex,mine:Agent")
    trials = [replace(trial("ab"[n], 1.0 - n), trial_name=f"s000000-p0{n}-g00") for n in range(2)]
    groups = [group_trajectories(one.task_name, [one]) for one in trials]
    found = {name: value for name, value in parts.batch(groups).items() if name.startswith("reward/mean")}
    assert sorted(found) == ["reward/mean/agent/codex", "reward/mean/agent/mine_Agent"]
    assert sorted(found.values()) == [0.0, 1.0]


def test_columns_are_bounded_and_plain():
    many = [task(f"t{i:02d}", f"dömain {i // 2}/x") for i in range(2 * MOST)] + [task("a", "rare"), task("b", "rarer")]
    parts = Breakdown(many)
    named = {name.split("/", 3)[3] for name in parts.batch([group(t.name, 1.0) for t in many])}
    assert len(named) == MOST + 1 and OTHER in named and "rare" not in named
    assert all("/" not in name and name.isascii() and " " not in name for name in named)
