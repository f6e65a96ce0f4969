"""Functions that a user brings: advantages of a group, additions to a reward; errors name the setting and the fix."""

from pathlib import Path

import pytest

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import assemble, has_signal
from harbortrainer.learning.brought import function, functions, with_reward
from harbortrainer.learning.trajectory import TrajectoryGroup, group_trajectories
from harbortrainer.plugins import bring, check_same
from tests.support.made_trials import trial

OWN = Path(__file__).parents[1] / "support" / "own_functions.py"


def group(*rewards: float) -> TrajectoryGroup:
    return group_trajectories("task", [trial(number, reward) for number, reward in enumerate(rewards)])


def config(**values: object) -> Config:
    return Config(**{"model_name": "m", "tasks_dir": "d", **values})  # pyright: ignore[reportArgumentType]


def written(folder: Path, code: str, name: str = "own.py") -> str:
    (folder / name).write_text(code)
    return f"{folder / name}:f"


def test_a_function_gives_an_advantage_to_each_turn() -> None:
    batch = assemble([group(1, 0)], config(advantage=f"{OWN}:later"))
    first, second = batch.sequences_D
    assert first.advantages_T.tolist() == [0, 0, 0.25, 0.25, 0, 0, 0.5, 0.5]
    assert second.advantages_T.tolist() == [0, 0, -0.25, -0.25, 0, 0, -0.5, -0.5]
    assert batch.advantages == {"s000000-p00-g00": 0.375, "s000000-p00-g01": -0.375}


def test_a_constant_group_has_the_signal_that_the_function_gives_it() -> None:
    assert not has_signal(group(1, 1), config())
    assert has_signal(group(1, 1), config(advantage=f"{OWN}:squared"))
    assert not has_signal(group(1, 1), config(advantage=f"{OWN}:later"))
    assert not has_signal(group(1), config(advantage=f"{OWN}:squared")), "one trial is no group"
    assert assemble([group(1, 1)], config(advantage=f"{OWN}:squared")).sequences_D


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("[1.0]", "1 advantages"),
        ("[1.0, float('nan')]", "a number that is not finite"),
        ("[[1.0, 2.0, 3.0], 1.0]", r"shape \(3,\) for the 2 turns"),
        ("['x', 1]", "no numbers"),
        ("None", "no numbers"),
    ],
)
def test_another_answer_is_refused(tmp_path: Path, answer: str, words: str) -> None:
    text = written(tmp_path, f"def f(rewards, trajectories): return {answer}")
    with pytest.raises(UserError, match=f"advantage=.*own.py:f: returned {words}.*for each of them"):
        assemble([group(1, 0)], config(advantage=text))


def test_what_a_function_adds_counts_where_all_of_a_group_have_it() -> None:
    added = function("reward", f"{OWN}:by_member")
    asked = [with_reward(added, trial(number, 0.0)) for number in range(2)]
    assert [one.shaping for one in asked] == [{"reward": 0.0}, {"reward": 0.5}]
    own = config(reward=f"{OWN}:by_member")
    assert list(assemble([group_trajectories("task", asked)], own).rewards.values()) == [0.0, 0.5]
    half = group_trajectories("task", [asked[1], trial(0, 1.0)])
    assert sorted(assemble([half], own).rewards.values()) == [0.0, 1.0]


@pytest.mark.parametrize("answer", ["None", "'1'", "float('inf')", "[1.0]"])
def test_no_number_is_refused(tmp_path: Path, answer: str) -> None:
    added = function("reward", written(tmp_path, f"def f(trajectory): return {answer}"))
    with pytest.raises(UserError, match=r"reward=.*own.py:f: returned .* for s000000-p00-g00; return a finite number"):
        with_reward(added, trial(0, 1.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mean", "give MODULE:NAME or path/to/FILE.py:NAME"),
        ("nowhere.py:f", "there is no file .*nowhere.py"),
        ("no_such_module:f", "there is no module no_such_module; install it"),
        ("math:no_such_function", "math has no no_such_function"),
        (f"{OWN}:Sequence.x", "has no Sequence.x"),
        ("math:pi", "it is no function, but of type float"),
    ],
)
def test_what_cannot_be_found_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"advantage={text}: .*{words}|advantage=.*{words}"):
        function("advantage", text)


def test_an_error_of_the_users_code_is_shown_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        bring("advantage", written(tmp_path, "1 / 0", "broken.py"))
    with pytest.raises(ModuleNotFoundError, match="torchlike"):
        bring("advantage", written(tmp_path, "import torchlike", "lacking.py"))
    raising = written(tmp_path, "def f(rewards, trajectories): return [1 / 0 for _ in rewards]", "raising.py")
    with pytest.raises(ZeroDivisionError):
        assemble([group(1, 0)], config(advantage=raising))


def test_other_code_is_another_run(tmp_path: Path) -> None:
    text = written(tmp_path, "def f(rewards, trajectories): return rewards")
    before = {field: one.source for field, one in functions(config(advantage=text)).items()}
    assert functions(config()) == {} and functions(config(reward=text))["reward"].given == f"reward={text}"
    check_same({"advantage": bring("advantage", text)}, before)
    check_same({"advantage": bring("advantage", text)}, {})
    bring.cache_clear()
    written(tmp_path, "def f(rewards, trajectories): return np.square(rewards)")
    with pytest.raises(UserError, match=r"its code has changed since the run began .*start a new run"):
        check_same({"advantage": bring("advantage", text)}, before)
