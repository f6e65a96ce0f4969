"""Domains of tau2 in this process: databases, tools, the guarded calculator, the grade, tasks and their split."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from harbortrainer.bundled.tau import package
from harbortrainer.bundled.tau.calculator import refusal
from harbortrainer.bundled.tau.domain import World, domain
from harbortrainer.bundled.tau.exchange import MOST_ERRORS, MOST_STEPS, Dialogue, End
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, group_trajectories
from harbortrainer.policy.tools import ToolCall as Call
from harbortrainer.run.metrics import Breakdown
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.split import split_tasks, users_note
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from tests.support.tau_parts import needs_tau2
from tests.support.tiers import first

pytestmark = needs_tau2
BASE = {"retail": 114, "airline": 50, "telecom": 114}
FLOOR = {"retail": 7, "airline": 19, "telecom": 0}


def loaded(source: str) -> list[Task]:
    return load_sources(find_sources(source))


def replayed(name: str, key: str, *, change: Callable[[list[Any]], list[Any]] = lambda calls: calls) -> float:
    """The grade of a conversation that makes the task's own calls, changed."""
    exchange = Dialogue(domain(name), domain(name).task(key))
    criteria = exchange.task.evaluation_criteria
    for one in change(list(criteria.actions or [])):
        (exchange.user if one.requestor == "user" else exchange.agent)("", [Call(one.name, one.arguments)])
    exchange.agent("It is: " + " ".join(criteria.communicate_info or []))
    exchange.user("###STOP###")
    return grade(exchange.parts())


@pytest.mark.parametrize("name", first(1, BASE))
def test_every_tasks_own_actions_earn_1_and_nothing_earns_the_floor(name: str) -> None:
    place = domain(name)
    before = place.base.get_db_hash()
    assert [replayed(name, key) for key in place.data.tasks] == [1.0] * BASE[name]
    assert sum(task.floor or 0 for task in loaded(f"tau:{name}")) == FLOOR[name]
    assert place.base.get_db_hash() == before, "what the conversations changed was their own"


HOSTILE = [
    Call("no_such_tool", {}), Call("get_order_details", {}), Call("get_order_details", {"order_id": ["#W0"]}),
    Call("get_order_details", {"order_id": {"a": 1}}), Call("get_order_details", {"order_id": None, "x": 1}),
    Call("get_order_details", {"self": 1}), Call("get_order_details", {"requestor": "user"}),
    Call("get_order_details", {"tool_name": "x"}), Call("__init__", {}), Call("", {}), Call("tools", {"a": 1}),
    Call("calculate", {"expression": 5}), Call("calculate", {"expression": "__import__('os')"}),
    Call("calculate", {"expression": "9**9**9"}), Call("calculate", {"expression": "1(9**9**9)"}),
    Call("calculate", {"expression": "(" * 3000}), Call("calculate", {"expression": "1" * 6000}),
    Call("calculate", {"expression": "2(3)"}), Call("calculate", {"expression": ""}), Call("calculate", {}),
    Call("modify_pending_order_items", {"order_id": "#W0", "item_ids": 3, "new_item_ids": {}, "payment_method_id": []}),
]  # fmt: skip


def test_no_call_of_a_policy_raises_or_stalls() -> None:
    place = domain("retail")
    world = place.world(place.task("0"))
    for call in HOSTILE:
        began = time.thread_time()
        assert world.respond(call).error, call
        assert time.thread_time() - began < 0.5, call
    assert place.state(world) == ({}, {})


def tau2s_answer(world: World, expression: str) -> tuple[str, bool]:
    """What the unguarded tool says."""
    message = package.module("data_model.message").ToolCall(name="calculate", arguments={"expression": expression})
    answer = world.environment.get_response(message)
    return answer.content, answer.error


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_the_guarded_calculator_gives_tau2s_own_answers_and_errors() -> None:
    rng, world = random.Random(3), domain("retail").world(domain("retail").task("0"))
    marks = ["+", "-", "*", "/", "**", "//", "(", ")", ".", "0.5", "1", "2", "7", "12", "100.25", "3e", "a", "0", "-"]
    expressions = ["".join(rng.choice(marks) for _ in range(rng.randint(1, 9))) for _ in range(1000)]
    safe = [one for one in expressions if refusal({"expression": one}) is None]
    assert len(safe) > 800
    for one in safe:
        result = world.respond(Call("calculate", {"expression": one}))
        assert (result.text, result.error) == tau2s_answer(world, one), one
    assert sum(not world.respond(Call("calculate", {"expression": one})).error for one in safe) > 100


HANGING = ["9**9**9", "2**(10**9)", "(9**9)**9**9", "1-9**9**9", "1(9**9**9)", "-9**(9**9)", "9** 999999999"]
HANGING += ["9**(99999999)", "2**1e9", "*".join(["10**4999"] * 222), "9**99_999_999", "9**99(1)"]


@pytest.mark.parametrize("expression", HANGING)
def test_powers_that_would_hang_are_refused(expression: str) -> None:
    assert refusal({"expression": expression}) == "Only one power, with an exponent of two digits at most"


def test_limits_of_a_conversation_go_before_its_users_end() -> None:
    place = domain("retail")
    exchange = Dialogue(place, place.task("0"))
    for _ in range(MOST_ERRORS - 1):
        exchange.agent("", [Call("no_such_tool", {})])
    assert exchange.end is None and exchange.steps == 2 * (MOST_ERRORS - 1)
    exchange.unreadable("<tool_call>{", "Error: no JSON")
    assert exchange.end is End.ERRORS
    long = Dialogue(place, place.task("0"))
    for _ in range((MOST_STEPS - 2) // 2):
        long.agent("x")
        long.user("y")
    long.agent("x")
    assert long.end is None
    long.user("###STOP###")
    assert long.end is End.STEPS


def test_an_unmet_assertion_that_raises_counts_as_not_met() -> None:
    place = domain("mock")
    exchange = Dialogue(place, place.task("create_task_1_with_env_assertions"))
    exchange.user("###STOP###")
    assert exchange.parts() == {"DB": 0.0, "ENV_ASSERTION": 0.0}


def test_the_data_sets_own_test_side_is_held_out_and_its_overlap_is_counted() -> None:
    tasks = loaded("tau:retail,tau:airline")
    with pytest.raises(UserError, match="allow_family_overlap=true"):
        split_tasks(tasks, 0.0, ["@test"], 0)
    train, held_out = split_tasks(tasks, 0.0, ["@test"], 0, allow_family_overlap=True)
    assert (len(train), len(held_out)) == (104, 60)
    assert users_note(train, held_out).startswith(
        "38 of 60 held-out tasks have a user who also stands in training (28 "
    )
    airline = [task for task in held_out if task.source == "airline"]
    assert users_note(train, airline).startswith("8 of 20 held-out tasks have a user who also stands in training (6 ")
    assert sum(task.clean is True for task in airline) == 12
    assert sum(task.clean is True for task in held_out if task.source == "retail") == 10
    side = load_sources(find_sources("tau:retail@test"))
    assert [task.name for task in side] == [task.name for task in held_out if task.source == "retail"]


def test_a_drawn_split_keeps_users_together() -> None:
    tasks = loaded("tau:retail")
    train, held_out = split_tasks(tasks, 0.3, (), 1)
    assert 20 < len(held_out) < 50 and users_note(train, held_out) == ""
    assert not {identify(task).family for task in train} & {identify(task).family for task in held_out}


def test_floor_and_clean_subset_stand_beside_every_mean() -> None:
    tasks = loaded("tau:retail@test,tau:airline@test")
    breakdown = Breakdown(tasks)
    turn = Turn(0, (1,), (2,), (-0.5,), 0)
    trials = [Trajectory(task.name, "trial", (turn,), 1.0, Outcome.COMPLETED) for task in tasks]
    groups = [group_trajectories(trial.task_name, [trial]) for trial in trials]
    row = breakdown.evaluation(groups)
    assert row["eval/reward_floor/source/airline"] == 6 / 20 and row["eval/reward_floor/source/retail"] == 2 / 40
    assert row["eval/reward_floor"] == 8 / 60 and row["eval/tasks_clean"] == 22 and row["eval/reward_mean_clean"] == 1
    assert breakdown.batch(groups)["reward/floor/source/airline"] == 6 / 20


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("tau:retial", "did you mean tau:retail"),
        ("tau:bank", "one of retail, airline, telecom, mock"),
        ("tau:retail@dev", "a side is train or test"),
        ("tau:mock@test", "mock has no split of its own"),
    ],
)
def test_a_wrong_source_is_refused_in_one_line(source: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        loaded(source)
    assert len(str(refused.value).splitlines()) == 1


def test_another_version_or_no_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(_: str) -> str:
        raise package.PackageNotFoundError

    package.data_folder.cache_clear()
    for version, says in (
        (lambda _: "27.0", "27.0 is installed, and its tasks"),
        (no_version, "is not installed; run"),
    ):
        monkeypatch.setattr(package, "version", version)
        with pytest.raises(UserError, match=says):
            package.data_folder()
    monkeypatch.undo()
    package.data_folder.cache_clear()
    assert package.data_folder().is_dir()
