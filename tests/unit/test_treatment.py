"""What training does with an outcome: the table, a run's changes of it, and what may not be changed."""

import pytest

from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, group_trajectories
from harbortrainer.learning.treatment import DEFAULT, outcome_policy, outcome_problems, too_many

TURN = Turn(0, (1, 2), (3, 4), (-0.5, -0.5), 0)
OUTCOMES = (Outcome.COMPLETED, Outcome.MAX_TURNS, Outcome.COMPLETED)


def group():
    rewards = (1.0, 0.5, 0.0)
    trials = [Trajectory("t", f"g{i}", (TURN,), r, o) for i, (r, o) in enumerate(zip(rewards, OUTCOMES, strict=True))]
    return group_trajectories("t", [*trials, Trajectory("t", "g3", (), None, Outcome.INFRASTRUCTURE_ERROR)])


def test_by_default_every_grade_is_trained_on() -> None:
    assert DEFAULT.treat(group()) == group()
    assert {outcome for outcome in Outcome if DEFAULT.replaces(outcome)} == {
        Outcome.INFRASTRUCTURE_ERROR,
        Outcome.VERIFIER_ERROR,
    }


@pytest.mark.parametrize(
    ("change", "rewards"),
    [
        ("mask", {"g0": 1.0, "g2": 0.0}),
        ("-1", {"g0": 1.0, "g1": -1.0, "g2": 0.0}),
        (0.25, {"g0": 1.0, "g1": 0.25, "g2": 0.0}),
    ],
)
def test_a_changed_outcome_is_masked_or_has_its_own_reward(change: object, rewards: dict[str, float]) -> None:
    assert outcome_problems({"max_turns": change}) == []
    treated = outcome_policy({"max_turns": change}).treat(group())
    assert {t.trial_name: t.reward for t in treated.trajectories_G} == rewards
    assert len(treated.trajectories_G) + len(treated.lost) == 4


def test_a_masked_trial_is_neither_trained_on_nor_a_baseline_and_is_counted() -> None:
    config = Config(model_name="m", tasks_dir=".", outcome_policy={"max_turns": "mask"})
    batch = assemble([group()], config)
    assert batch.advantages == {"g0": 0.5, "g2": -0.5}
    assert {s.trial_name for s in batch.sequences_D} == {"g0", "g2"}
    assert batch.metrics["group/trials_masked"] == 1.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("infrastructure_error", "0.0", "without a grade has no reward"),
        ("verifier_error", "train", "it is replaced"),
        (
            "timeout",
            "mask",
            "no such outcome; one of completed, max_turns, context_length, agent_timeout",
        ),
        ("max_turns", "skip", "give train, mask, replace, or a reward"),
        ("max_turns", "nan", "give train, mask, replace, or a reward"),
        ("max_turns", True, "give train, mask, replace, or a reward"),
    ],
)
def test_nonsense_is_refused_in_a_line_that_names_it(name: str, value: object, words: str) -> None:
    (line,) = outcome_problems({name: value})
    assert line.startswith(f"outcome_policy.{name}={value}: ") and words in line
    with pytest.raises(UserError, match=f"outcome_policy.{name}"):
        validate(Config(model_name="m", tasks_dir=".", outcome_policy={name: value}))


@pytest.mark.parametrize(
    ("n_failed", "n_known", "n_tasks", "ends"),
    [
        (10, 30, 99, False),
        (11, 30, 99, True),
        (11, 12, 99, True),
        (11, 31, 99, False),
        (1, 3, 3, False),
        (2, 3, 3, True),
    ],
)
def test_more_than_a_third_of_the_first_tasks_may_not_fail(
    n_failed: int, n_known: int, n_tasks: int, ends: bool
) -> None:
    lines = too_many({f"t{n:02}": "no image" for n in range(n_failed)}, n_known, n_tasks).splitlines()
    assert bool(lines) is ends and lines[5:] == ["and 6 more"] * (len(lines) > 5)
