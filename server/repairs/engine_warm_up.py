"""Programs of longer prompts and datums are compiled before a call needs them, in a thread of its own.

Upstream: skyrl/backends/jax.py compiles within the call: one long trial holds up the whole step for its program.
Here, with `warm_up_tokens`, the first pass and the first wave have the programs of all other lengths up to that one
compiled as well. A call that needs the program which is compiled just then waits for it; one that waits in the queue
is compiled by the call.
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
from repairs.engine_shapes import lengths, room_for

Compile = Callable[[], Any]


class Ahead:
    """Programs by key: in the queue, compiled now in the thread, or known to the engine. `limit`: tokens; 0: none."""

    def __init__(self) -> None:
        self.limit, self.micro_batch = 0, 0
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

    def add(self, key: Hashable, name: str, compile_it: Compile) -> None:
        with self._changed:
            if key in self._known | self._made or key in self._queue:
                return
            self._queue[key] = name, compile_it
            if self._thread is None:
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
            except FAILURES as error:
                logger.warning(f"{name} could not be compiled ahead: {error}")
            engine_load.load.add(compiles_ahead=1)
            with self._changed:
                self._now = None
                self._changed.notify_all()


ahead = Ahead()


def spec(value: jax.Array, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    """What a program is compiled for, in the place of an array."""
    sharding = value.sharding if value.committed else None
    return jax.ShapeDtypeStruct(shape or value.shape, value.dtype, sharding=sharding, weak_type=value.weak_type)


def specs_of(arrays: Any, rows: int, length: int) -> Any:
    """The specs of a batch's arrays, shapes (B,) and (B, T), with other B and T."""
    return jax.tree.map(lambda value: spec(value, (rows, length)[: value.ndim]), arrays)


def warming_pass(jitted: Any, kind: str, mesh: Any) -> Any:
    def run(pending: Any, lora_params: Any, others: Any, ids: jax.Array, *batch: Any) -> Any:
        """Wraps a pass. The first one, also a tiny one of a probe, starts those of full micro batches."""
        if ahead.limit and ahead.needs((kind, *ids.shape)):
            params, rows = jax.tree.map(spec, (pending, lora_params, others)), ahead.micro_batch or ids.shape[0]
            for length in lengths(ahead.limit):
                specs = *params, *specs_of((ids, *batch), rows, length)
                name = f"{engine_load.WHAT[kind]} of {rows} x {length} tokens"
                ahead.add((kind, rows, length), name, compiling(jitted, mesh, *specs))
        return jitted(pending, lora_params, others, ids, *batch)

    return run


def warming_waves(jitted: Any) -> Any:
    longest = 0  # answer limit of the waves whose programs were compiled ahead

    def run(model: Any, ids: jax.Array, mask: jax.Array, room: int, new: int, *rest: Any, **flags: bool) -> Any:
        """Wraps GeneratorMixin._prefill_and_decode. Started by the longest answers so far and by mere scoring."""
        nonlocal longest
        settings = (new, *(value if isinstance(value, int) else value.shape for value in rest), *flags.values())
        first = ahead.limit and ahead.needs((*ids.shape, room, settings))
        scored = flags.get("prompt_logprobs", False)
        if first and (new == 1 if scored else new > longest):
            longest, rows, mesh = max(new, longest), ids.shape[0], ids.sharding.mesh
            others = jax.tree.map(lambda value: spec(value) if isinstance(value, jax.Array) else value, (model, rest))
            for length in lengths(ahead.limit):
                specs, fits = specs_of((ids, mask), rows, length), room_for(length + new)
                name = f"{engine_load.WHAT['_prefill_and_decode']} of {rows} x {length} tokens, {new} new{', prompt scored' * scored}"
                compile_it = compiling(jitted, mesh, others[0], *specs, fits, new, *others[1], **flags)
                ahead.add((rows, length, fits, settings), name, compile_it)
        return jitted(model, ids, mask, room, new, *rest, **flags)

    return run


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
        jitted = self._forward_backward_and_accumulate
        self._forward_backward_and_accumulate = warming_pass(jitted, "forward_backward", self.mesh)

    return create


def apply() -> None:
    class BackendConfig(backend.JaxBackendConfig):
        warm_up_tokens: int = Field(default=0, ge=0, description="Lengths up to which programs are compiled ahead")

    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl._create_loss_and_grad_fn = with_warm_up(backend.JaxBackendImpl._create_loss_and_grad_fn)
    GeneratorMixin._prefill_and_decode = staticmethod(warming_waves(GeneratorMixin._prefill_and_decode))
