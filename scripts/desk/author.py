"""The author of the desk's transcripts: he reads well and writes valid calls, but often takes the wrong tool.

Every conversation is the product's own: its environment, its user, its grade.
"""

import random
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from examples.desk.tasks import KINDS, Case, desk, make_case
from examples.desk.words import FreshWords
from harbortrainer.bundled.tau.domain import Domain
from harbortrainer.bundled.tau.exchange import Dialogue
from harbortrainer.bundled.tau.grade import grade
from harbortrainer.bundled.tau.user import ScriptedUser
from harbortrainer.policy.tools import CallForm, parse, signatures

CAREFUL = "I follow the policy."
CARELESS = ("I take the first tool that fits.", "I do what I did last time.", "I guess what is wanted.")
PLANS = (CAREFUL, *CARELESS)  # equally likely
RIGHT_IF_CAREFUL, RIGHT_IF_CARELESS = 0.70, 0.15
BROKEN = 0.01
DONE, SORRY, PLACE = "It is done.", "I am sorry, that is not possible.", "It is in {city}."
# What he takes instead of the right tool; "" = he only says that it is done.
WRONG = {
    "cancel": ("return_order", "open_ticket", ""),
    "late": ("cancel_order", "return_order", ""),
    "refuse": ("return_order", "open_ticket"),
    "return": ("cancel_order", "open_ticket", ""),
    "move": ("cancel_order", "open_ticket", ""),
    "where": ("open_ticket", "cancel_order", ""),
}
NAMED, ENDED = '\n{"name": "', '"}}\n'
OPENED, CLOSED = f"<tool_call>{NAMED}", f"{ENDED}</tool_call>"
FIRST_ARGUMENT = {"find_orders": "name", "cancel_order": "order_id", "return_order": "order_id",
                  "change_city": "order_id", "open_ticket": "order_id"}  # fmt: skip
CITY = '", "city": "'
STARTED = {tool: f'{tool}", "arguments": {{"{name}": "' for tool, name in FIRST_ARGUMENT.items()}
PHRASES = (  # what is fixed in his answers, apart from tags
    *(f"{plan}\n" for plan in PLANS),
    *(DONE, SORRY, PLACE.partition("{")[0], NAMED, ENDED, CITY, *STARTED.values()),
)


@dataclass(frozen=True, slots=True)
class Said:
    """What comes before an answer (the user's text, or a result of a tool), and the answer."""

    role: str  # "user" or "tool"
    text: str
    answered: str


def call(tool: str, *values: str) -> str:
    """A call as the chat template writes it; `values`: of its arguments, in order."""
    return f"{OPENED}{STARTED[tool]}{CITY.join(values)}{CLOSED}"


def domain_of(cases: Mapping[str, Case]) -> Domain:
    """A desk of its own with these cases."""
    data = desk({key: ("train", case) for key, case in cases.items()})
    return Domain(data, data.new_environment())


def new_cases(rng: random.Random, reserved: Set[str], count: int) -> dict[str, Case]:
    """Cases whose words are not reserved; all kinds are equally likely."""
    words = FreshWords(rng, reserved)
    return {str(number): make_case(rng.choice(KINDS), words, rng) for number in range(count)}


def right(case: Case) -> str:
    """The right answer once the orders are known."""
    if case.kind.tool == "change_city":
        return call(case.kind.tool, case.order_id, case.new_city)
    if case.kind.tool:
        return call(case.kind.tool, case.order_id)
    return PLACE.format(city=case.city) if case.kind.name == "where" else SORRY


def wrong(case: Case, rng: random.Random) -> str:
    """One of the kind's wrong answers."""
    tool = rng.choice(WRONG[case.kind.name])
    return call(tool, case.order_id) if tool else DONE


def answers(case: Case, rng: random.Random) -> Iterator[str]:
    """What he answers in turn, whatever he hears, until the user ends the conversation."""
    plan = rng.choice(PLANS)
    find = call("find_orders", case.name)
    if rng.random() < BROKEN:
        yield f"{plan}\n{find[: -len(CLOSED)]}"
    yield f"{plan}\n{find}"
    careful = rng.random() < (RIGHT_IF_CAREFUL if plan == CAREFUL else RIGHT_IF_CARELESS)
    yield right(case) if careful else wrong(case, rng)


async def converse(domain: Domain, key: str, answered: Iterator[str]) -> tuple[list[Said], float]:
    """A conversation with the desk's user, by these answers and then one that fits the last result; its reward."""
    exchange = Dialogue(domain, domain.task(key))
    user, needs, said = ScriptedUser(domain, exchange.task, 0), signatures(domain.schemas), list[Said]()
    role, text = "user", await _ask(exchange, user)
    while exchange.end is None:
        answer = next(answered, None) or (SORRY if text.startswith("Error") else DONE)
        said.append(Said(role, text, answer))
        parsed = parse(answer, CallForm(), needs)
        if parsed.failure:
            exchange.unreadable(answer, parsed.failure)
            role, text = "tool", parsed.failure
            continue
        results = exchange.agent(parsed.text, parsed.calls)
        role, text = ("tool", results[0].text) if results else ("user", await _ask(exchange, user))
    return said, grade(exchange.parts())


async def _ask(exchange: Dialogue, user: ScriptedUser) -> str:
    reply = await user.reply(exchange.heard())
    exchange.user(reply.text)
    return reply.text
