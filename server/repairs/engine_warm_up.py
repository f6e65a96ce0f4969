"""Programs of longer prompts and datums are compiled before a call needs them, in a thread of its own.

Upstream: skyrl/backends/jax.py compiles within the call: one long trial holds up the whole step for its program.
Here, with `warm_up_tokens`, the first pass of each kind and the first wave have the programs of all other lengths up to
that one compiled as well; scoring passes only for runs that score. Without it, on a GPU, waves and the pass of a
client's probe are compiled from the start on, and passes of the lengths that were sampled, while more is sampled. A
call that needs the program which is compiled just then waits for it; one that waits in the queue is compiled by the
call.
"""

# pyright: reportMissingImports=false
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from pydantic import Field
from skyrl.backends import jax as backend
from skyrl.tx.utils.generator import GeneratorMixin

from repairs import engine_memory
from repairs.engine_decode import spec
from repairs.engine_programs import Program, compiling, programs, quickly
from repairs.engine_seats import PLAIN, Seats, flags_of, on_gpu
from repairs.engine_shapes import TINY, full_rows, lengths, pass_length
from repairs.handover import FOLDER
from repairs.machine import GIB

Make = Callable[[int], Program]  # of a length
ON_GPU = 8192  # tokens up to which waves are compiled ahead there, from the start on
ARRAYS = jax.Array, jax.ShapeDtypeStruct
PROBED = 2  # datums of a call of a client's probe, each of at most TINY tokens
TARGETS = 6  # the place of the targets among the arguments of a pass


class Ahead:
    """Lengths for which passes and scorings are compiled ahead, and what makes these programs, by kind."""

    def __init__(self) -> None:
        self._makes: dict[tuple, Make] = {}
        self._seen: dict[int, None] = {}  # lengths of sequences that were sampled: they will be scored and trained

    def begin(self, kind: tuple, make: Make) -> list[Program]:
        """Programs of a kind, when the first of its kind is called."""
        if kind in self._makes:
            return []
        self._makes[kind] = make
        return [make(length) for length in dict.fromkeys((*self._seen, *lengths(programs.limit)))]

    def sampled(self, tokens: list[int]) -> list[Program]:
        """Programs for sequences of these lengths; none for a probe's."""
        new = dict.fromkeys(pass_length(count) for count in tokens if count > TINY) if programs.hinted else {}
        found = [make(length) for length in new if length not in self._seen for make in self._makes.values()]
        self._seen |= new
        return found


ahead = Ahead()


def specs_of(arrays: Any, rows: int, length: int) -> Any:
    """The specs of a batch's arrays, shapes (B,), (B, T) and (B, T, K), with other B and T."""
    return jax.tree.map(lambda value: spec(value, (rows, length, *value.shape[2:])[: value.ndim]), arrays)


def pass_program(jitted: Any, mesh: Any, kind: str, rows: int, length: int, *arguments: Any) -> Program:
    """`kind`: training or scoring, whose programs differ. `arguments`: arrays or their specs."""
    several = arguments[TARGETS].shape[2:]
    name = f"a {kind} pass of {rows} x {length} tokens" + (f" with {several[0]} targets each" if several else "")
    options = quickly() if length <= TINY else None
    return (kind, rows, length, *several), name, compiling(jitted, mesh, *arguments, options=options)


def planned_pass(jitted: Any, mesh: Any, kind: str) -> Any:
    """`kind` as of pass_program."""
    program = partial(pass_program, jitted, mesh, kind)

    def longer(params: Any, batch: Any) -> Make:
        specs, batch = jax.tree.map(spec, (params, batch))

        def full(length: int) -> Program:
            rows = full_rows(length, programs.micro_batch or batch[0].shape[0])
            return program(rows, length, *specs, *specs_of(batch, rows, length))

        return full

    def run(pending: Any, lora_params: Any, others: Any, *batch: Any) -> Any:
        """Wraps a pass. The first one, also a tiny one of a probe, starts those of full micro batches."""
        params, own = (pending, lora_params, others), program(*batch[0].shape, pending, lora_params, others, *batch)
        result = programs.get(*own)
        form = kind, *batch[TARGETS - len(params)].shape[2:]
        more = ahead.begin(form, longer(params, batch)) if programs.first(own[0]) else []
        # over several devices arrays come in other places than the program was compiled for: JAX moves them
        found = (result if mesh.size == 1 else jitted)(*params, *batch)
        programs.add(more)
        return found

    return run


def planned_chunks(stock_chunk: Any) -> Any:
    begun: dict[Any, int] = {}  # by settings, the answer limit with which programs were compiled ahead

    def chunk(self: Any) -> Any:
        """Wraps Seats._chunk: the longest answers so far start the programs of all other prompts."""
        flags, new = flags_of(self.taken), 0 if on_gpu() else max(row.params.max_tokens for row in self.taken)
        ended = stock_chunk(self)
        programs.add(ahead.sampled([len(row.prompt) + len(row.tokens) for row in ended]))
        limit = programs.limit or (ON_GPU if programs.hinted else 0)
        if limit and new > begun.get(flags, -1):
            begun[flags] = new
            programs.add(self.ahead(flags, limit, new))
        return ended

    return chunk


def started(stock_init: Any) -> Any:
    def init(self: Any, base_model: str, config: Any, process_id: int) -> None:
        """Wraps JaxBackendImpl.__init__: on a GPU a probe's pass and sampling waves, before anybody asks."""
        stock_init(self, base_model, config, process_id)
        if programs.hinted and self.mesh.size == 1:
            arguments = jax.tree.map(spec, engine_memory.pass_of(self, PROBED, TINY))
            programs.add([pass_program(self.training_pass, self.mesh, "training", PROBED, TINY, *arguments)])
            if not os.environ.get(FOLDER):
                programs.add(self.seats.ahead(PLAIN, ON_GPU))

    return init


def planned_scores(jitted: Any) -> Any:
    def program(model: Any, ids: Any, mask: Any, rest: Any) -> Program:
        compile_it = compiling(jitted, ids.sharding.mesh, model, ids, mask, *rest)
        name = "a scoring of {} x {} tokens".format(*ids.shape)
        return ("score", *ids.shape, *settings_of(rest)), name, compile_it

    def longer(model: Any, ids: Any, mask: Any, rest: Any) -> Make:
        model, ids, mask, rest = jax.tree.map(
            lambda one: spec(one) if isinstance(one, jax.Array) else one, (model, ids, mask, rest)
        )

        def full(length: int) -> Program:
            rows = full_rows(length, programs.seats or ids.shape[0])
            tables = specs_of((ids, mask), rows, length)
            return program(model, tables[0], tables[1], rows_of(rest, rows))

        return full

    def run(model: Any, ids: jax.Array, mask: jax.Array, *rest: Any) -> Any:
        """Wraps the scoring of prompts. Started by the first one."""
        own = program(model, ids, mask, rest)
        compiled = programs.get(*own)
        more = ahead.begin(("score",), longer(model, ids, mask, rest)) if programs.first(own[0]) else []
        one_device = ids.sharding.mesh.size == 1
        result = compiled(model, ids, mask, *arrays_of(rest)) if one_device else jitted(model, ids, mask, *rest)
        programs.add(more)
        return result

    return run


def arrays_of(rest: Any) -> list[Any]:
    """Arguments without those for which the program was compiled."""
    return [value for value in rest if isinstance(value, jax.Array)]


def settings_of(rest: Any) -> list[Any]:
    """What a program depends on besides its rows: flags as they are, arrays by the rest of their shape."""
    return [value if isinstance(value, int) else value.shape[1:] for value in rest]


def rows_of(rest: Any, rows: int) -> list[Any]:
    """Arguments that have an entry for each row, with other rows; flags as they are."""
    return [spec(value, (rows, *value.shape[1:])) if isinstance(value, ARRAYS) else value for value in rest]


def with_programs(stock_create: Any) -> Any:
    def create(self: Any) -> None:
        """Wraps JaxBackendImpl._create_loss_and_grad_fn, which makes the two passes."""
        stock_create(self)
        if self.config.enforce_eager:
            return
        programs.clear()
        programs.room.limit_bytes = int(self.config.memory_limit_gib * GIB)
        programs.limit, programs.hinted = (
            max(0, self.config.warm_up_tokens),
            on_gpu() and self.config.warm_up_tokens < 0,
        )
        programs.micro_batch = max(0, self.config.train_micro_batch_size)
        programs.seats = max(0, self.config.sample_max_num_sequences)
        self.training_pass = self._forward_backward_and_accumulate
        self._forward_backward_and_accumulate = planned_pass(self.training_pass, self.mesh, "training")
        self._forward = planned_pass(self._forward, self.mesh, "scoring")

    return create


def apply() -> None:
    class BackendConfig(backend.JaxBackendConfig):
        warm_up_tokens: int = Field(
            default=-1,
            ge=-1,
            description="Lengths up to which programs are compiled ahead; -1: of sampled lengths on a GPU",
        )
        memory_limit_gib: float = Field(default=0, ge=0, description="Memory of the engine on a CPU; 0: the cgroup's")

    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl.__init__ = started(backend.JaxBackendImpl.__init__)
    backend.JaxBackendImpl._create_loss_and_grad_fn = with_programs(backend.JaxBackendImpl._create_loss_and_grad_fn)
    Seats._chunk = planned_chunks(Seats._chunk)
    GeneratorMixin._score = staticmethod(planned_scores(GeneratorMixin._score))
