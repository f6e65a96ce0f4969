"""The desk's tasks, made from kinds: customers, orders, ids and cities are made-up words, none in two tasks."""

import hashlib
import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import BaseModel

from harbortrainer.bundled.tau.data import DomainData

from . import environment
from .environment import DELIVERED, PENDING, SHIPPED
from .words import FreshWords

SEED = 20261123
SIZES = {"train": 8, "test": 3}  # tasks of a kind for each of its shares
ITEMS = ("lamp", "chair", "clock", "shelf", "tent", "stove", "drill", "bench", "scarf", "mirror", "blanket", "drum")
KNOWN = "My name is {name}."
# Of a model that plays the user.
GUIDELINES = """You play a customer who talks to the service desk of a shop.
- Begin with everything that the scenario says, in its words.
- Answer the desk's questions by the scenario alone; agree to what you are asked to confirm.
- After a message of the desk that asks nothing, answer ###STOP### and nothing else."""
_CANCEL = (
    "Please cancel my order of the {item}.",
    "I no longer want the {item}. Cancel that order.",
    "I ordered the {item} by mistake and want to cancel it.",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task. `status`: of the order; `tool`: the right call, "" = none; `share`: of all."""

    name: str
    status: str
    wordings: tuple[str, ...]
    tool: str
    share: int = 2


KINDS = (
    Kind("cancel", PENDING, _CANCEL, "cancel_order"),
    Kind("late", SHIPPED, _CANCEL, "open_ticket"),
    Kind("refuse", DELIVERED, _CANCEL, "", share=1),  # doing nothing is right here alone
    Kind(
        "return",
        DELIVERED,
        (
            "I want to send back the {item}.",
            "The {item} does not please me. Take it back.",
            "Please let me return the {item}.",
        ),
        "return_order",
    ),
    Kind(
        "move",
        PENDING,
        (
            "Please send the {item} to {new_city} instead.",
            "I have moved to {new_city}. Send the {item} there.",
            "The {item} must go to {new_city}.",
        ),
        "change_city",
        share=3,
    ),
    Kind(
        "where",
        SHIPPED,
        (
            "In which city is the {item} now?",
            "Where is the {item} that I ordered?",
            "Tell me the city of the {item}.",
        ),
        "",
    ),
)  # fmt: skip


class Action(BaseModel):
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"
    compare_args: list[str] | None = None


class Basis(StrEnum):
    DB = "DB"
    COMMUNICATE = "COMMUNICATE"


class Criteria(BaseModel):
    actions: list[Action]
    communicate_info: list[str]
    reward_basis: list[Basis]
    env_assertions: None = None


class Instructions(BaseModel):
    reason_for_call: str
    known_info: str


class Scenario(BaseModel):
    instructions: Instructions

    def __str__(self) -> str:
        return f"{self.instructions.reason_for_call}\n{self.instructions.known_info}"


class DeskTask(BaseModel):
    """A task in tau2's form, as far as the desk uses it."""

    id: str
    user_scenario: Scenario
    evaluation_criteria: Criteria
    initial_state: None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One task with every name filled in."""

    kind: Kind
    name: str
    item: str
    order_id: str
    city: str
    new_city: str
    wording: str

    @property
    def order(self) -> dict[str, str]:
        """The customer's order at the start."""
        return {"user_id": self.name, "item": self.item, "status": self.kind.status, "city": self.city}

    @property
    def words(self) -> set[str]:
        """Every made-up word of the case."""
        return {*self.name.split(), self.order_id, self.city, self.new_city}

    def task(self, key: str) -> dict[str, Any]:
        """Return the task as JSON values."""
        arguments = {"order_id": self.order_id} | ({"city": self.new_city} if self.kind.tool == "change_city" else {})
        reason = self.wording.format(item=self.item, new_city=self.new_city)
        instructions = {"reason_for_call": reason, "known_info": KNOWN.format(name=self.name)}
        criteria = {
            "actions": [{"name": self.kind.tool, "arguments": arguments}] if self.kind.tool else [],
            "communicate_info": [self.city] if self.kind.name == "where" else [],
            "reward_basis": ["DB", "COMMUNICATE"],
        }
        return {"id": key, "user_scenario": {"instructions": instructions}, "evaluation_criteria": criteria}


def make_case(kind: Kind, words: FreshWords, rng: random.Random) -> Case:
    """Return a customer with one order."""
    name, item = f"{words.word()} {words.word()}", rng.choice(ITEMS)
    return Case(
        kind, name, item, words.word(), city=words.word(), new_city=words.word(), wording=rng.choice(kind.wordings)
    )


@cache
def cases() -> dict[str, tuple[str, Case]]:
    """Return side and case by id, e.g. `cancel-3`. The same at every call and in every process."""
    rng = random.Random(SEED)
    words = FreshWords(rng)
    found: dict[str, tuple[str, Case]] = {}
    for kind in KINDS:
        sides = [side for side, size in SIZES.items() for _ in range(size * kind.share)]
        for number, side in enumerate(sides, 1):
            found[f"{kind.name}-{number}"] = (side, make_case(kind, words, rng))
    return found


def desk(cases: Mapping[str, tuple[str, Case]]) -> DomainData:
    """Return the domain with these cases: side and case by id."""
    orders = {case.order_id: case.order for _, case in cases.values()}
    users = {case.name: {"user_id": case.name} for _, case in cases.values()}
    code = inspect.getsource(environment) + repr(orders)
    return DomainData(
        name="desk",
        version="desk 1",
        tasks={key: case.task(key) for key, (_, case) in cases.items()},
        split={"base": [*cases]} | {side: [key for key, (of, _) in cases.items() if of == side] for side in SIZES},
        database={"orders": orders, "users": users},
        digest=hashlib.sha256(code.encode()).hexdigest(),
        new_environment=lambda: environment.Environment(environment.Shop.model_validate({"orders": orders})),
        read_task=DeskTask.model_validate,
        new_call=environment.ToolCall,
        guidelines=lambda with_tools: GUIDELINES,
        for_script=True,
    )
