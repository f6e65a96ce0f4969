"""Parts from outside that answer wrongly: each is refused in one line that names it, and changes no grade."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import guess
from harbortrainer.bundled.agents.program import Program
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.brought import function, with_reward
from harbortrainer.learning.trajectory import Outcome, Trajectory, group_trajectories
from harbortrainer.plugins import bring, known, offer, plugin
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import TrialRequest, checked_venues
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify, venue
from tests.support.made_trials import trial
from tests.support.rollouts_rig import Rig, graded, lost


def answering(change: Callable[[Trajectory], Any]) -> Callable[[TrialRequest], Any]:
    return lambda request: change(graded(request))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: None, "a NoneType, no Trajectory"),
        (lambda one: replace(one, reward=math.nan), "the reward nan and the outcome"),
        (lambda one: replace(one, reward="1"), "the reward '1' and the outcome"),
        (lambda one: replace(one, reward=None), "the reward None and the outcome"),
        (
            lambda one: replace(one, outcome=Outcome.VERIFIER_ERROR, reward=0.0),
            "the reward 0.0 and the outcome .*verifier",
        ),
        (lambda one: replace(one, outcome="completed"), "the reward .* and the outcome 'completed'"),
        (lambda one: replace(one, trial_name="x"), r"task and trial \('a', 'x'\)"),
        (lambda one: replace(one, task_name="x"), r"task and trial \('x', 's000004-p00-g00'\), not a"),
    ],
)
async def test_a_venue_answers_with_the_trial_and_its_grade(
    tmp_path: Path, change: Callable[[Trajectory], Any], words: str
) -> None:
    with pytest.raises(UserError, match=f"tasks_dir=harbor: its venue answered s000004-p0.* with {words}"):
        await Rig(tmp_path, answering(change)).go()


async def test_a_venue_may_grade_with_numpy_and_leave_the_attempt_out(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        one = lost(request) if request.attempt == 1 and request.name.endswith("g00") else graded(request)
        return replace(one, reward=one.reward and np.float32(one.reward), attempt=1)  # pyright: ignore[reportArgumentType]

    groups = await Rig(tmp_path, run).go()
    trials = [one for group in groups for one in group.trajectories_G]
    assert {(type(one.reward), one.attempt) for one in trials} == {(float, 1), (float, 2)}


async def test_a_venue_that_cancels_itself_is_no_stop_of_the_user(tmp_path: Path) -> None:
    def run(request: TrialRequest) -> Trajectory:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="its venue harbor cancelled itself"):
        await Rig(tmp_path, run).go()


class Listing(guess.GuessVenue):
    """Lists tasks as it is told."""

    def __init__(self, loaded: Any, found: Any = ("2", "1")) -> None:
        self.loaded, self.found = loaded, found

    def find(self, name: str) -> Any:
        return self.found

    def load(self, place: str, excluded: object) -> Any:
        return self.loaded


@pytest.fixture
def offered() -> Any:
    before = {*known("venues")}
    yield lambda value: offer("venues", f"v{id(value)}", value) or f"v{id(value)}:2"
    from harbortrainer import plugins

    for group, name in [*plugins._offered]:
        if name not in before:
            del plugins._offered[group, name]
    plugin.cache_clear()


ONE = Task("number-1", "2 1", "0" * 64)


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (None, r"load\(\) of its venue returned None; return a list of Task"),
        (["number-1"], r"load\(\) of its venue returned \['number-1'\]"),
        ([ONE, ONE], "its venue has two tasks of one name; give each its own"),
    ],
)
def test_a_venue_loads_a_list_of_tasks(offered: Callable[[object], str], loaded: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"tasks_dir=v.*:2: {words}"):
        load_sources(find_sources(offered(Listing(loaded))))


@pytest.mark.parametrize("found", [None, "2", ("2", 1)])
def test_a_venue_finds_a_path_and_a_version(offered: Callable[[object], str], found: Any) -> None:
    with pytest.raises(UserError, match=r"find\(\) of its venue returned .*; return \(path, version\)"):
        find_sources(offered(Listing([ONE], found)))


class Silent(guess.GuessVenue):
    """Returns nothing from one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, lambda *_: None)


@pytest.mark.parametrize("method", ["names", "identify", "check", "room"])
async def test_a_venue_that_returns_nothing_is_named(offered: Callable[[object], str], method: str) -> None:
    nothing: Any = None
    config = Config(model_name="m", tasks_dir="t")
    with pytest.raises(UserError, match=rf"tasks_dir=v.*: {method}\(\) of its venue returned None; return a"):
        tasks = load_sources(find_sources(offered(Silent(method))))
        identify(tasks[0])
        checked_venues(tasks, config, nothing, {})
        async with Rollouts(config, nothing, nothing, "r").opened(tasks, print):
            pass


def test_what_is_excluded_stays_out_whatever_a_venue_loads(offered: Callable[[object], str]) -> None:
    both = [ONE, replace(ONE, name="number-2")]
    tasks = load_sources(find_sources(offered(Listing(both))), exclude=["number-1"])
    assert [task.name for task in tasks] == ["number-2"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("GuessVenue", "of <class 'type'>"), ("play", "of <class 'function'>"), ("SAMPLING", "of <class 'str'>")],
)
def test_a_venue_is_an_object_with_its_methods(name: str, words: str) -> None:
    with pytest.raises(UserError, match=f"tasks_dir=examples.guess:{name}: {words}; name an object with the methods"):
        venue(f"examples.guess:{name}")


def test_a_file_without_a_source_is_said() -> None:
    with pytest.raises(UserError, match=r"tasks_dir=mine.py:VENUE: names no tasks; give mine.py:VENUE:NAME"):
        find_sources("mine.py:VENUE")
    with pytest.raises(UserError, match="give the largest number"):
        find_sources("examples.guess:VENUE:x")


def test_an_agent_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from harbor.agents.installed.base import BaseInstalledAgent\nclass Own(BaseInstalledAgent): ..."
    )
    program = Program("one", "module:Class", "one")
    with pytest.raises(
        UserError, match=r"agent=.*own.py:Own: its name\(\) returns None; return the name of its program"
    ):
        program.like(bring("agent", f"{tmp_path}/own.py:Own"))


def test_functions_change_only_copies(tmp_path: Path) -> None:
    loop = "for t in more[0] if more else [one]: t.stats.clear(), t.shaping.update(judge=9.0)"
    (tmp_path / "own.py").write_text(f"def f(one, *more):\n    {loop}\n    return [1.0, 0.0] if more else 0.5\n")
    name = f"{tmp_path}/own.py:f"
    one = replace(trial(0, 1.0), stats={"parse_failures": 1.0})
    shaped = with_reward(function("reward", name), one)
    assert (shaped.stats, shaped.shaping) == ({"parse_failures": 1.0}, {"reward": 0.5})
    group = group_trajectories("task", [one, trial(1, 0.0)])
    assemble([group], Config(model_name="m", tasks_dir="d", advantage=name))
    assert one.stats and not one.shaping
