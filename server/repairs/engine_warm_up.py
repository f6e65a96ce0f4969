"""Programs of longer prompts and datums are compiled before a call needs them, in a thread of its own.

Upstream: skyrl/backends/jax.py compiles within the call: one long trial holds up the whole step for its program.
Here, with `warm_up_tokens`, the first pass of each kind and the first wave have the programs of all other lengths up to
that one compiled as well; scoring passes only for runs that score. A call that needs the program which is compiled just
then waits for it; one that waits in the queue is compiled by the call.
"""

# pyright: reportMissingImports=false
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
from pydantic import Field
from skyrl.backends import jax as backend
from skyrl.tx.utils.generator import GeneratorMixin
from skyrl.utils.log import logger

from repairs import engine_load
from repairs.engine_requests import FAILURES
from repairs.engine_shapes import full_rows, lengths, room_for
from repairs.engine_waves import full_seats, seats_for

Compile = Callable[[], Any]
Program = tuple[Hashable, str, Compile]  # key, name for people, what makes it


class Ahead:
    """Programs by key: in the queue, compiled now in the thread, or known to the engine. `limit`: tokens; 0: none.

    `micro_batch`, `seats`: rows of full passes and waves; 0: as the first has.
    """

    def __init__(self) -> None:
        self.limit, self.micro_batch, self.seats = 0, 0, 0
        self._changed = threading.Condition()
        self._queue: dict[Hashable, tuple[str, Compile]] = {}
        self._known: set[Hashable] = set()  # that the engine has called
        self._made: set[Hashable] = set()
        self._now: Hashable = None
        self._thread: threading.Thread | None = None

    def needs(self, key: Hashable) -> bool:
        """Whether this is the engine's first call of a program; waits while the thread compiles it."""
        began = time.monotonic()
        with self._changed:
            first = key not in self._known
            self._known.add(key)
            self._queue.pop(key, None)
            if self._now == key:
                self._changed.wait_for(lambda: self._now != key)
                engine_load.load.add(compile_seconds=time.monotonic() - began)
        return first

    def add(self, programs: list[Program]) -> None:
        """After the call that made them: compiling beside it would slow it down."""
        with self._changed:
            for key, name, compile_it in programs:
                if key not in self._known | self._made:
                    self._queue[key] = name, compile_it
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                self._now = next(iter(self._queue))
                name, compile_it = self._queue.pop(self._now)
                self._made.add(self._now)
            began = time.monotonic()
            try:
                compile_it()
                logger.info(f"compiled ahead: {name} in {time.monotonic() - began:.1f} s")
                engine_load.load.add(compiles_ahead=1)
            except FAILURES as error:  # the call that needs it will compile it, and fail where it must
                logger.warning(f"{name} could not be compiled ahead: {error}")
            with self._changed:
                self._now = None
                self._changed.notify_all()


ahead = Ahead()


def spec(value: jax.Array, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    """What a program is compiled for, in the place of an array."""
    sharding = value.sharding if getattr(value, "committed", True) else None
    weak = getattr(value, "weak_type", False)  # random keys have neither
    return jax.ShapeDtypeStruct(shape or value.shape, value.dtype, sharding=sharding, weak_type=weak)


def specs_of(arrays: Any, rows: int, length: int) -> Any:
    """The specs of a batch's arrays, shapes (B,) and (B, T), with other B and T."""
    return jax.tree.map(lambda value: spec(value, (rows, length)[: value.ndim]), arrays)


def warming_pass(jitted: Any, mesh: Any, kind: str) -> Any:
    """`kind`: training or scoring, whose programs differ."""

    def longer(params: Any, batch: Any) -> list[Program]:
        programs = []
        for length in lengths(ahead.limit):
            rows = full_rows(length, ahead.micro_batch or batch[0].shape[0])
            compile_it = compiling(jitted, mesh, *jax.tree.map(spec, params), *specs_of(batch, rows, length))
            programs.append(((kind, rows, length), f"a {kind} pass of {rows} x {length} tokens", compile_it))
        return programs

    def run(pending: Any, lora_params: Any, others: Any, *batch: Any) -> Any:
        """Wraps a pass. The first one, also a tiny one of a probe, starts those of full micro batches."""
        first = ahead.limit and ahead.needs((kind, *batch[0].shape))
        programs = longer((pending, lora_params, others), batch) if first else []
        result = jitted(pending, lora_params, others, *batch)
        ahead.add(programs)
        return result

    return run


def warming_waves(jitted: Any) -> Any:
    longest = 0  # answer limit of the waves whose programs were compiled ahead

    def longer(settings: Hashable, model: Any, ids: Any, mask: Any, new: int, rest: Any, flags: Any) -> list[Program]:
        programs: list[Program] = []
        for length in lengths(ahead.limit):
            room = room_for(length + new)
            full = full_seats(room, ahead.seats or ids.shape[0])
            for rows in dict.fromkeys((full, seats_for(1, full))):
                specs, others = specs_of((ids, mask), rows, length), rows_of(rest, rows)
                args = jax.tree.map(spec, model), *specs, room, new, *others
                name = f"a sampling wave of {engine_load.wave_shape((rows, length), new)}"
                key = rows, length, room, settings
                programs.append((key, name, compiling(jitted, ids.sharding.mesh, *args, **flags)))
        return programs

    def run(model: Any, ids: jax.Array, mask: jax.Array, room: int, new: int, *rest: Any, **flags: bool) -> Any:
        """Wraps GeneratorMixin._prefill_and_decode. Started by the longest answers so far."""
        nonlocal longest
        settings = (new, *settings_of(rest), *flags.values())
        first = ahead.limit and ahead.needs((*ids.shape, room, settings))
        programs: list[Program] = []
        if first and new > longest:
            longest, programs = new, longer(settings, model, ids, mask, new, rest, flags)
        result = jitted(model, ids, mask, room, new, *rest, **flags)
        ahead.add(programs)
        return result

    return run


def warming_scores(jitted: Any) -> Any:
    begun = False

    def longer(settings: Hashable, model: Any, ids: Any, mask: Any, rest: Any) -> list[Program]:
        programs: list[Program] = []
        for length in lengths(ahead.limit):
            rows = full_rows(length, ahead.seats or ids.shape[0])
            args = jax.tree.map(spec, model), *specs_of((ids, mask), rows, length), *rows_of(rest, rows)
            key = "score", rows, length, settings
            name = f"a scoring of {rows} x {length} tokens"
            programs.append((key, name, compiling(jitted, ids.sharding.mesh, *args)))
        return programs

    def run(model: Any, ids: jax.Array, mask: jax.Array, *rest: Any) -> Any:
        """Wraps the scoring of prompts. Started by the first one."""
        nonlocal begun
        settings = tuple(settings_of(rest))
        first = ahead.limit and ahead.needs(("score", *ids.shape, settings))
        programs = longer(settings, model, ids, mask, rest) if first and not begun else []
        begun |= bool(programs)
        result = jitted(model, ids, mask, *rest)
        ahead.add(programs)
        return result

    return run


def settings_of(rest: Any) -> list[Any]:
    """What a program depends on besides its rows: flags as they are, arrays by the rest of their shape."""
    return [value if isinstance(value, int) else value.shape[1:] for value in rest]


def rows_of(rest: Any, rows: int) -> list[Any]:
    """Arguments that have an entry for each row, with other rows; flags as they are."""
    return [spec(value, (rows, *value.shape[1:])) if isinstance(value, jax.Array) else value for value in rest]


def compiling(jitted: Any, mesh: Any, *specs: Any, **flags: bool) -> Compile:
    def compile_it() -> None:
        with jax.set_mesh(mesh):
            jitted.lower(*specs, **flags).compile()

    return compile_it


def with_warm_up(stock_create: Any) -> Any:
    def create(self: Any) -> None:
        """Wraps JaxBackendImpl._create_loss_and_grad_fn, which makes the two passes."""
        stock_create(self)
        if not self.config.enforce_eager:
            ahead.limit, ahead.micro_batch = self.config.warm_up_tokens, max(0, self.config.train_micro_batch_size)
            ahead.seats = max(0, self.config.sample_max_num_sequences)
        self._forward_backward_and_accumulate = warming_pass(
            self._forward_backward_and_accumulate, self.mesh, "training"
        )
        self._forward = warming_pass(self._forward, self.mesh, "scoring")

    return create


def apply() -> None:
    class BackendConfig(backend.JaxBackendConfig):
        warm_up_tokens: int = Field(default=0, ge=0, description="Lengths up to which programs are compiled ahead")

    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl._create_loss_and_grad_fn = with_warm_up(backend.JaxBackendImpl._create_loss_and_grad_fn)
    GeneratorMixin._prefill_and_decode = staticmethod(warming_waves(GeneratorMixin._prefill_and_decode))
    GeneratorMixin._score = staticmethod(warming_scores(GeneratorMixin._score))
