"""examples/desk: the generated tasks and their split, the tools, the grade by the loop that grades tau2's domains."""

import subprocess
import sys

import pytest

from examples.desk.tasks import Case, cases
from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.exchange import Dialogue
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.bundled.tau.user import STOP, ScriptedUser
from harbortrainer.bundled.tau.venue import VENUE
from harbortrainer.config import Config
from harbortrainer.policy.tools import ToolCall as Call
from harbortrainer.tasks.identity import Identity
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.tasks.task import Task
from harbortrainer.tasks.venue import identify
from tests.conftest import ROOT
from tests.support.families import QWEN_TOOLS, chat_of


def loaded(source: str = "tau:examples/desk") -> list[Task]:
    return load_sources(find_sources(source))


def case(key: str) -> Case:
    return cases()[key][1]


def right(one: Case) -> tuple[list[Call], str]:
    """The calls and the last text that the policy of the desk asks for."""
    if one.kind.tool == "":
        return [], f"It is in {one.city}." if one.kind.name == "where" else "That is not possible."
    more = {"city": one.new_city} if one.kind.tool == "change_city" else {}
    return [Call(one.kind.tool, {"order_id": one.order_id} | more)], "Done."


async def earned(key: str, calls: list[Call], text: str) -> float:
    """The reward of a conversation with the desk's own user: orders found, these calls, this text."""
    desk = domain("examples/desk")
    exchange = Dialogue(desk, desk.task(key))
    user = ScriptedUser(desk, exchange.task, 0)
    exchange.user((await user.reply(exchange.heard())).text)
    assert not exchange.agent("", [Call("find_orders", {"name": case(key).name})])[0].error
    for call in calls:
        exchange.agent("", [call])
    exchange.agent(text)
    said = await user.reply(exchange.heard())
    assert said.text == STOP
    exchange.user(said.text)
    return grade(exchange.parts())


def test_sides_share_no_customer_order_or_city() -> None:
    tasks = loaded()
    assert [sum(task.side == side for task in tasks) for side in ("train", "test")] == [96, 36]
    words = {side: [case.words for of, case in cases().values() if of == side] for side in ("train", "test")}
    every = [word for sets in words.values() for one in sets for word in one]
    assert len(every) == len({*every})
    assert all(task.clean for task in tasks if task.side == "test")
    known: list[Identity] = [identify(task) for task in tasks]
    assert len({one.family for one in known}) == len(tasks)


def test_tasks_are_the_same_in_every_process() -> None:
    code = (
        "from harbortrainer.tasks.sources import find_sources, load_sources; import sys;"
        "tasks = load_sources(find_sources('tau:examples/desk'));"
        "print(*(task.digest for task in tasks), 'tau2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": "7"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [*(task.digest for task in loaded()), "False"]


def test_doing_nothing_earns_a_twelfth() -> None:
    tasks = loaded()
    assert sum(task.floor or 0 for task in tasks) / len(tasks) == pytest.approx(1 / 12)
    assert {task.name.split("-")[1] for task in tasks if task.floor} == {"refuse"}


async def test_what_the_policy_of_the_desk_asks_for_earns_1() -> None:
    before = domain("examples/desk").base.tools.db.model_dump()
    assert [await earned(key, *right(case(key))) for key in cases()] == [1.0] * 132
    assert domain("examples/desk").base.tools.db.model_dump() == before, "conversations change copies"


@pytest.mark.parametrize("kind", ["cancel", "late", "refuse", "return", "move", "where"])
async def test_another_order_or_another_tool_earns_nothing(kind: str) -> None:
    one = case(f"{kind}-1")
    other = case(f"{kind}-2").order_id
    assert await earned(f"{kind}-1", [Call("open_ticket", {"order_id": other})], right(one)[1]) == 0.0
    assert await earned(f"{kind}-1", [*right(one)[0], Call("open_ticket", {"order_id": other})], "Done.") == 0.0
    if kind != "refuse":
        assert await earned(f"{kind}-1", [], "Done.") == 0.0
    if kind == "where":
        assert await earned("where-1", [], f"It is in {case('where-2').city}.") == 0.0


def test_its_script_needs_no_warning_and_a_model_may_play_the_user_too() -> None:
    chat, tasks = chat_of(QWEN_TOOLS), loaded("tau:examples/desk@test")
    assert VENUE.check(tasks, Config(model_name="m", tasks_dir="tau:examples/desk"), chat, 1) == []
    assert VENUE.check(tasks, Config(model_name="m", tasks_dir="tau:examples/desk", user="base"), chat, 1) == []
