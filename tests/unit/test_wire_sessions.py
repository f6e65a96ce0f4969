"""Sessions of real agents, recorded at this API with a scripted policy: every turn continues, token for token.

mini-swe-agent 2.4.6, codex 0.169.0, opencode 1.18.33, qwen-code 0.15.10 and claude-code 2.1.197, in their newest
versions of 23 Nov 2026 and with the arguments that Harbor gives them. Long texts are shortened, and each has two or
three of its tools; otherwise the requests are as they came. `said` is what the policy sampled for a request.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.errors import UserError
from harbortrainer.learning.datums import training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.model_api.exchange import Exchange
from harbortrainer.model_api.gate import FEWEST, judge
from harbortrainer.model_api.normal import Malformed
from harbortrainer.model_api.reply import Over
from harbortrainer.model_api.service import wires
from tests.conftest import ROOT
from tests.support.wire_parts import exchange_of

SESSIONS = ROOT / "tests" / "support" / "sessions"
NAMES = ["claude-code", "codex", "mini-swe-agent", "opencode", "qwen-code"]
LARGEST = 60_000  # bytes of a recording


def recorded(name: str) -> list[dict[str, Any]]:
    file = SESSIONS / f"{name}.jsonl"
    assert file.stat().st_size <= LARGEST
    return [json.loads(line) for line in file.read_text().splitlines()]


async def replayed(name: str) -> tuple[Exchange, list[list[int]]]:
    """The exchange after a recording, and the prompts that were sampled."""
    records = recorded(name)
    said = iter([record["said"] for record in records])
    exchange, client = exchange_of(lambda request: next(said))
    for record in records:
        asked = wires()[record["path"]].read(record["body"])
        await exchange.say(asked.messages, asked.tools, asked_max_tokens=asked.max_tokens)
    return exchange, [request.prompt_T for request in client.requests]


@pytest.mark.parametrize("name", NAMES)
async def test_every_turn_of_a_recorded_session_continues(name: str) -> None:
    exchange, prompts = await replayed(name)
    title = 1 if name == "opencode" else 0  # it asks for a title first
    stats = exchange.stats
    assert (stats["wire_turns"], stats["wire_segments"], stats["wire_matched"]) == (5 + title, 1 + title, 4)
    assert (stats["wire_foreign"], stats["wire_branches"], stats["wire_side_turns"]) == (0, 0, title)
    assert stats["wire_tokens_per_unique_token"] == 1.0 and stats["tool_calls"] >= 4
    assert exchange.side_segments == tuple(range(title))
    for number in range(title + 1, len(prompts)):
        held = [*prompts[number - 1], *exchange.turns[number - 1].completion_tokens_T]
        assert prompts[number][: len(held)] == held
    made = Trajectory(
        "t", "n", tuple(exchange.turns), 1.0, Outcome.COMPLETED, side_segments=exchange.side_segments, stats=stats
    )
    (sequence,) = training_sequences(made, 1.0)
    assert len(sequence.tokens_T) == len(prompts[-1]) + len(exchange.turns[-1].completion_tokens_T)
    judged = judge([stats], made.n_sampled_tokens)
    assert (judged.line, judged.stops, judged.foreign_rate, judged.tokens_per_unique_token) == ("", False, 0.0, 1.0)


async def test_answers_that_the_agent_dropped_are_branches_and_are_reported() -> None:
    """mini-swe-agent, with two answers in a row that call no tool."""
    exchange, _ = await replayed("mini-swe-agent-drops")
    stats = exchange.stats
    assert (stats["wire_matched"], stats["wire_foreign"], stats["wire_branches"]) == (4, 0, 2)
    judged = judge([stats] * FEWEST, 1000)
    assert not judged.stops and judged.tokens_per_unique_token > 1.3
    assert "tokens are trained for each unique token" in judged.line


async def test_a_wire_that_changes_the_answers_is_seen_and_stops_the_run() -> None:
    """As a stream did whose text one client did not keep: reward stays, and every prompt is trained again."""
    records = recorded("codex")
    said = iter([record["said"] for record in records])
    exchange, _ = exchange_of(lambda request: next(said))
    for record in records:
        items = record["body"]["input"]
        record["body"]["input"] = [item for item in items if item.get("role") != "assistant"]
        asked = wires()[record["path"]].read(record["body"])
        await exchange.say(asked.messages, asked.tools)
    stats = exchange.stats
    assert stats["wire_foreign"] == 3 and stats["wire_matched"] == 1 and stats["wire_tokens_per_unique_token"] > 1.8
    judged = judge([stats] * FEWEST, 1000)
    assert judged.stops and judged.foreign_rate == 0.75 and "60 of 80 histories" in judged.line
    assert not judge([stats], 1000).stops  # too few to stop a run


def test_side_calls_that_take_most_tokens_are_reported() -> None:
    judged = judge([{"wire_side_tokens": 60.0, "wire_tokens": 100.0}], 100)
    assert judged.side_token_share == 0.6 and "60%" in judged.line and not judged.stops
    assert judge([], 0).line == ""


def test_no_recording_names_the_machine_it_was_made_on() -> None:
    for file in sorted(Path(SESSIONS).glob("*.jsonl")):
        assert not re.search(r"/work/|/tmp/|wire-agents", file.read_text())


JUNK: list[Any] = [
    None,
    5,
    -1,
    1e308,
    float("nan"),
    "",
    "x",
    "\ud83d",
    "\0",
    "<|im_end|>",
    [],
    [[]],
    {},
    {"type": 5},
    True,
]
REFUSALS = (Malformed, KeyError, TypeError, AttributeError, UserError, Over)


def garbled(value: Any, rng: random.Random) -> Any:
    """A copy with some of its parts replaced, dropped or doubled."""
    if rng.random() < 0.02:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {key: garbled(inner, rng) for key, inner in value.items() if rng.random() > 0.01}
    if isinstance(value, list):
        return [garbled(inner, rng) for inner in value for _ in range(rng.choice([1] * 30 + [0, 2]))]
    return value


@pytest.mark.parametrize("name", NAMES)
async def test_garbled_requests_are_answered_or_refused(name: str) -> None:
    """The policy can send these: none may look like a fault of the run, which would be a second try for the trial."""
    rng = random.Random(name)
    exchange, _ = exchange_of(["x"], side_turns=0)
    outcomes: set[str] = set()
    for _ in range(20):
        for record in recorded(name)[-2:]:
            try:
                asked = wires()[record["path"]].read(garbled(record["body"], rng))
                await exchange.say(asked.messages, asked.tools, asked_max_tokens=asked.max_tokens)
                outcomes.add("answered")
            except REFUSALS as refused:
                outcomes.add(type(refused).__name__)
    assert exchange.fault is None and exchange.over == "" and {"answered"} < outcomes
