"""Sequences take seats as they come; each is what it is alone, and is answered when it has ended."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_programs import results

pytestmark = pytest.mark.nightly

SEATS = """
import json, sys
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_memory
from repairs.engine_seats import Row
from tests.support.engine_programs import ids_of

engine_memory.plan = lambda self: {}
settings = {"max_lora_adapters": 2, "max_lora_rank": 4, "sample_max_num_sequences": 2}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
seats = engine.seats
seats.steps = 16

def row(key, length, new, path="", **given):
    params = types.SamplingParams(**{"temperature": 1.0, "max_tokens": new, "seed": length} | given)
    return Row(key, ids_of((length,))[0], params, path)

def ended_of(rows):
    seats.queue.extend(rows)
    ended, taken = [], 0
    while seats.busy:
        steps = seats.steps
        ended += [one.key for one in seats.step()]
        seats.steps, taken = steps, max(taken, len(seats.taken))
    return ended, taken

def values(one):
    return [one.tokens, one.logprobs, one.reason]

lengths = {"long": (20, 60), "a": (30, 8), "b": (40, 8), "late": (140, 20), "c": (50, 8)}
rows = {key: row(key, *sizes) for key, sizes in lengths.items()}
found = {"order": ended_of([*rows.values(), row("lost", 9, 4, path="/nowhere.tar.gz")])}
found["together"] = {key: values(one) for key, one in rows.items()}
found["alone"] = {}
for key, sizes in lengths.items():
    alone = row(key, *sizes)
    seats.run([alone])
    found["alone"][key] = values(alone)
tokens = rows["long"].tokens
words = {place: engine.tokenizer.decode([token]) for place, token in enumerate(tokens)}
place = next(place for place, word in words.items() if place > 10 and word.isascii() and word.strip())
ends = row("stop", 20, 60, stop_tokens=[tokens[30]]), row("text", 20, 60, stop_strings=[words[place]])
seats.run(ends)
found["stops"] = [values(one) for one in ends]
found["first"], found["place"] = tokens.index(tokens[30]) + 1, place
print("RESULT", json.dumps(found))
"""


@pytest.fixture(scope="module")
def seats(server_env: None, tiny_model_dir: Path) -> dict[str, Any]:
    """Five sequences, one of them with a longer prompt, and one without weights, on two seats."""
    return results(tiny_model_dir, SEATS)


def test_seats_are_given_on_and_the_longest_answer_holds_up_none(seats: dict[str, Any]) -> None:
    order, taken = seats["order"]
    assert taken == 2 and sorted(order) == ["a", "b", "c", "late", "long", "lost"]
    assert order.index("a") < order.index("b") < order.index("long")


def test_a_sequence_is_what_it_is_alone_whoever_sits_beside_it(seats: dict[str, Any]) -> None:
    for key, (tokens, logprobs, reason) in seats["alone"].items():
        beside = seats["together"][key]
        assert beside[0] == tokens and beside[2] == reason == "length"
        assert beside[1] == pytest.approx(logprobs, abs=1e-5)


def test_tokens_and_strings_end_an_answer_in_any_chunk(seats: dict[str, Any]) -> None:
    (stopped, logprobs, reason), (text, _, why) = seats["stops"]
    whole = seats["alone"]["long"][0]
    assert stopped == whole[: seats["first"]] and len(logprobs) == len(stopped) and reason == "stop"
    assert text == whole[: len(text)] and len(text) <= seats["place"] + 1 and why == "stop"
