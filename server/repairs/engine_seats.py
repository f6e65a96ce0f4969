"""Sequences are sampled on seats: one that has ended is answered at once, and its seat is given to the next.

Upstream: skyrl/tx/utils/generator.py, GeneratorMixin.generate computes a wave of sequences until the longest has ended:
short ones wait for it, their seats stay empty, and whoever asks meanwhile waits too. Prompt length, answer limit and
number of stop tokens each make another program.
Here the keys and values of all seats stay on the device. A prompt is computed into free seats, then all seats are
advanced together, a chunk of tokens at a time. There is a program for each room of a seat (a power of two for prompt
and answer together) and one for each prompt length. A seat's tokens depend on its own seed alone.
"""

# pyright: reportMissingImports=false
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from skyrl.backends import jax as backend
from skyrl.backends.renderer import render_model_input
from skyrl.tinker import types
from skyrl.tx.utils.generator import find_string_stop_position

from repairs import engine_load
from repairs.engine_decode import CHUNK, Decoder, Flags, State
from repairs.engine_programs import Program, TooLarge
from repairs.engine_shapes import SHORTEST, lengths, power_of_two, prompt_length
from repairs.handover import DAMAGED
from repairs.shared import FILLING

PLAIN: Flags = (4, 0, False)  # of samples without special settings
UNREADABLE = (ValueError, LookupError, TypeError, OSError, *DAMAGED)  # weights that cannot be loaded
LEAST = 16  # tokens of a chunk
CHUNK_SEC = 1.0  # that a chunk shall take
QUARTER = 4
EIGHT = 8  # seats come in eights where fewer fit than may be
COARSE = 8192  # tokens up to which rooms are powers of two, and half as many up to which prompts are
SHORT, SMALL = 512, 4096  # tokens of the least prompt and room on a GPU: cuDNN reads no more than is filled
ROOM_STEP = 64  # tokens; elsewhere all of a room is read, and it is that of prompt and answer
fill_tokens = 1024  # of the prompts that are computed together; engine_memory sets it
state_tokens = 0  # in whose room fit the states of linear attention of a sequence; engine_memory sets it
wave_tokens = 0  # of prompts and answers that seats have room for; 0: no limit; engine_memory sets it


@dataclass(eq=False)
class Row:
    """One sequence. `key`: its request; `slot`: of the sampler's weights, from the time when it is seated."""

    key: str
    prompt: list[int]
    params: types.SamplingParams
    path: str
    slot: int = 0
    error: Exception | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def room(self) -> int:
        return room_of(len(self.prompt), self.params.max_tokens)

    @property
    def left(self) -> int:
        """Tokens, at most."""
        return self.params.max_tokens - len(self.tokens)

    def restart(self) -> None:
        self.tokens, self.logprobs, self.reason = [], [], ""

    def take(self, tokens: list[int], logprobs: list[float], tokenizer: Any) -> bool:
        """Adds what was sampled. Whether the sequence has ended."""
        self.tokens += tokens
        self.logprobs += logprobs
        ended = bool(tokens) and tokens[-1] in (self.params.stop_tokens or [])
        place = find_string_stop_position(self.tokens, tokenizer, self.params.stop_strings or [])
        if place is not None:
            del self.tokens[place:], self.logprobs[place:]
        if ended or place is not None:
            self.reason = "stop"
        elif len(self.tokens) >= self.params.max_tokens:
            self.reason = "length"
        return bool(self.reason)

    def sequence(self) -> types.GeneratedSequence:
        return types.GeneratedSequence(stop_reason=self.reason, tokens=self.tokens, logprobs=self.logprobs)


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def rounded(tokens: int, coarse: int) -> int:
    return power_of_two(tokens) if tokens <= coarse else prompt_length(tokens)


def length_of(tokens: int) -> int:
    """To how many tokens a prompt is filled up."""
    return max(SHORT if on_gpu() else SHORTEST, rounded(tokens, COARSE // 2))


def room_of(prompt: int, new: int) -> int:
    """Of a seat for a prompt and an answer of so many tokens."""
    if on_gpu():
        return max(SMALL, rounded(prompt + new, COARSE))
    return -(-(length_of(prompt) + new) // ROOM_STEP) * ROOM_STEP


def full_seats(room: int, most: int) -> int:
    """Seats of this room that fit."""
    fitting = max(1, (wave_tokens - FILLING * room) // (room + state_tokens)) if wave_tokens else most
    return min(most, fitting if fitting < EIGHT else fitting // EIGHT * EIGHT)


def fill_rows(length: int, most: int) -> int:
    """How many prompts of this length are computed together; fewer are filled up."""
    return max(1, min(-(-most // QUARTER), fill_tokens // length))


class Seats:
    """Who sits where. `queue`: who waits for a seat, in this order."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.decoder = backend, Decoder(backend)
        self.queue: deque[Row] = deque()
        self.rows: list[Row | None] = []
        self.state: State | None = None
        self.room = 0
        self.steps = 32  # of the next chunk

    @property
    def taken(self) -> list[Row]:
        return [row for row in self.rows if row]

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.taken)

    def reset(self) -> None:
        """Nobody sits or waits."""
        self.queue.clear()
        self._leave()

    def run(self, rows: Iterable[Row]) -> None:
        """Samples these rows, and nobody else's. Raises what hinders one of them."""
        self.reset()
        self.queue.extend(rows)
        try:
            while self.busy:
                for row in self.step():
                    if row.error:
                        raise row.error
        finally:
            self.reset()

    def step(self) -> list[Row]:
        """Seats who waits and samples a chunk. Returns who has ended or cannot be sampled. Raises TooLarge."""
        try:
            failed = self._admit()
            return failed + (self._chunk() if self.taken else [])
        except TooLarge:
            if len(self.rows) <= 1:
                raise
            self._make_smaller()
            return []

    def _make_smaller(self) -> None:
        """Lowers the bound that these seats have reached to half of it; who sat there begins again."""
        global wave_tokens
        wave_tokens = (len(self.rows) + 2 * FILLING) * (self.room + state_tokens) // 2
        again = self.taken
        for row in again:
            row.restart()
        self._leave()
        self.queue.extendleft(reversed(again))

    def _leave(self) -> None:
        self.rows, self.state, self.room, self.decoder.weights = [], None, 0, None
        self.backend.samplers.held = set()

    def _admit(self) -> list[Row]:
        """Who waits and cannot be sampled. The first in the queue that finds no place lets nobody past."""
        failed, new, samplers = [], [], self.backend.samplers
        taken = self.taken
        samplers.held = {row.slot for row in taken}
        most = self.backend.config.sample_max_num_sequences
        most = most if most > 0 else power_of_two(len(taken) + len(self.queue))
        while self.queue:
            row, others = self.queue[0], [*taken, *new]
            room = max(one.room for one in [*others, row])
            if len(others) >= full_seats(room, most):
                break
            try:
                if not samplers.has_room(row.path):
                    break
                row.slot = samplers.load([row.path])[row.path]
            except UNREADABLE as error:
                row.error = error
                failed.append(self.queue.popleft())
                continue
            samplers.held.add(row.slot)
            new.append(self.queue.popleft())
        if taken or new:
            self._arrange([*taken, *new], most)
            self._seat(new, most)
        return failed

    def _arrange(self, rows: list[Row], most: int) -> None:
        """Has as many seats, with as much room, as these rows need. Seats that are enough stay as they are."""
        room = max(row.room for row in rows)
        if self.state and len(rows) <= len(self.rows) and room <= self.room:
            return
        full, flags = full_seats(room, most), flags_of(rows)
        quarter = -(-full // QUARTER)
        made = [self.decoder.has(flags, count, room, soon=True) for count in (quarter, full)]
        count = quarter if len(rows) <= quarter and made != [False, True] else full
        places = [place for place, row in enumerate(self.rows) if row]
        sitting = [self.rows[place] for place in places]
        self.rows, self.room, state, self.state = sitting + [None] * (count - len(sitting)), room, self.state, None
        if state is None or not places:
            self.state = self.decoder.empty(count, room)
        else:
            self.state = self.decoder.grown(state, places + places[:1] * (count - len(places)), room)

    def _seat(self, new: list[Row], most: int) -> None:
        by_length: dict[int, list[Row]] = {}
        for row in new:
            by_length.setdefault(length_of(len(row.prompt)), []).append(row)
        for length, rows in by_length.items():
            while rows:
                count = fill_rows(length, most)
                self._fill(rows[:count], count, length)
                rows = rows[count:]

    def _fill(self, rows: list[Row], count: int, length: int) -> None:
        """Computes prompts, `count` of at most `length` tokens with those of nobody, which have one token."""
        ids, mask = np.zeros((2, count, length), np.int32)
        mask[:, 0] = 1
        for place, row in enumerate(rows):
            ids[place, : len(row.prompt)], mask[place, : len(row.prompt)] = row.prompt, 1
        more = count - len(rows)
        adapters = jax.device_put(np.array([row.slot for row in rows] + [0] * more, np.int32))
        keys = jax.vmap(jax.random.PRNGKey)(jnp.array([row.params.seed for row in rows] + [0] * more))
        free = [place for place, row in enumerate(self.rows) if row is None][: len(rows)]
        for place, row in zip(free, rows, strict=True):
            self.rows[place] = row
        if length > COARSE:  # which takes much memory
            self.decoder.weights = None
        new = self.decoder.prompts(*jax.device_put((ids, mask)), adapters, keys)
        state: Any = self.state
        self.state = None
        self.state = self.decoder.place(state, new, free + [len(self.rows)] * more)

    def _chunk(self) -> list[Row]:
        """Samples a chunk on all seats. Returns who has ended."""
        taken = self.taken
        flags, params = flags_of(taken), [(row or taken[0]).params for row in self.rows]
        table = np.full((len(params), flags[0]), -1, np.int32)
        for place, one in enumerate(params):
            table[place, : len(one.stop_tokens or [])] = one.stop_tokens or []
        # who asks for a free seat waits until the chunk ends, and so does who has reached the limit of an answer
        steps = min(self.steps if all(self.rows) else self.steps // QUARTER, *(row.left for row in taken))
        steps = max(LEAST, steps)
        arrays = [
            np.array([row.slot if row else 0 for row in self.rows], np.int32),
            np.array([one.temperature for one in params], np.float32),
            table,
            np.array([row.left if row else 0 for row in self.rows], np.int32),
            np.array([one.top_k for one in params], np.int32),
            np.array([one.top_p for one in params], np.float32),
            np.array([steps, -(-len(taken) // QUARTER)], np.int32),
        ]
        known, began = self.decoder.has(flags, len(self.rows), self.room), time.monotonic()
        state: Any = self.state
        self.state = None
        self.state, *found = self.decoder.chunk(flags, state, *jax.device_put(arrays))
        tokens, logprobs, counts = jax.device_get(found)
        seconds, steps = time.monotonic() - began, int(counts.max())
        if known:
            self.steps = min(CHUNK, max(LEAST, int(CHUNK_SEC * steps / seconds)))
        engine_load.load.add(waves=1, wave_requests=len(taken), wave_seconds=seconds)
        return self._take(tokens, logprobs, counts.tolist())

    def _take(self, tokens: np.ndarray, logprobs: np.ndarray, counts: list[int]) -> list[Row]:
        ended = []
        for place, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            new = tokens[place, :count].tolist(), logprobs[place, :count].tolist()
            if row and row.take(*new, self.backend.tokenizer):
                ended.append(row)
                self.rows[place] = None
        if not self.taken:
            self._leave()
        return ended

    def ahead(self, flags: Flags, limit: int, new: int = 0) -> list[Program]:
        """Programs for prompts of at most `limit` tokens and answers of `new`; 0: together at most `limit`."""
        found: list[Program] = []
        most = self.backend.config.sample_max_num_sequences or len(self.rows) or 1
        prompts = sorted({length_of(length) for length in lengths(limit)})
        for room in sorted({room_of(length, new) for length in lengths(limit)}):
            full = full_seats(room, most)
            for count in (full,) if on_gpu() else dict.fromkeys((full, -(-full // QUARTER))):
                shapes = [(fill_rows(one, most), one) for one in prompts if one <= room]
                found += self.decoder.ahead(flags, count, room, shapes)
        return found

    def has_begun(self, rows: list[Row]) -> bool:
        return any(row.tokens or row in self.rows for row in rows)

    def drop(self, key: str) -> None:
        """The rows of a request are nobody's."""
        self.queue = deque(row for row in self.queue if row.key != key)
        self.rows = [None if row and row.key == key else row for row in self.rows]
        if not self.taken:
            self._leave()


def flags_of(rows: list[Row]) -> Flags:
    """What a program depends on besides shapes."""
    params = [row.params for row in rows]
    stops = max(PLAIN[0], *(len(one.stop_tokens or []) for one in params))
    top_k = max([0, *(one.top_k for one in params)])
    return power_of_two(stops), power_of_two(top_k) if top_k else 0, any(one.top_p < 1 for one in params)


def rows_of(batch: types.PreparedSampleBatch) -> list[Row]:
    """Those of each request in turn; `key` is the request's."""
    prompts = [one.prompt_ids for one in render_model_input(batch.all_model_inputs)]
    return [
        Row(key, prompts[place], batch.all_sampling_params[place], batch.all_checkpoint_paths[place])
        for key, _, start, end, *_ in batch.request_batch_slices
        for place in range(start, end)
    ]


def apply() -> None:
    backend.JaxBackendImpl.seats = seats = cached_property(Seats)
    seats.__set_name__(backend.JaxBackendImpl, "seats")
