"""Programs of longer prompts and datums are compiled before a call needs them, in a thread of its own.

Upstream: skyrl/backends/jax.py compiles within the call: one long trial holds up the whole step for its program.
Here the first pass of each kind and the first wave have the programs of all other lengths up to `warm_up_tokens`
compiled as well; scoring passes only for runs that score. On a GPU waves are compiled from the start on, and
`warm_up_tokens` is set. A call that needs the program which is compiled just then waits for it; one that waits in the
queue is compiled by the call.
"""

# pyright: reportMissingImports=false
import os
from typing import Any

import jax
from pydantic import Field
from skyrl.backends import jax as backend
from skyrl.tx.utils.generator import GeneratorMixin

from repairs.engine_programs import Program, compiling, programs
from repairs.engine_room import GIB
from repairs.engine_seats import PLAIN, Seats, flags_of, on_gpu
from repairs.engine_shapes import full_rows, lengths
from repairs.handover import FOLDER

ON_GPU = 8192  # tokens up to which it is compiled ahead there, from the start on
TARGETS = 6  # the place of the targets among the arguments of a pass


def spec(value: jax.Array, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    """What a program is compiled for, in the place of an array."""
    sharding = value.sharding if getattr(value, "committed", True) else None
    weak = getattr(value, "weak_type", False)  # random keys have neither
    return jax.ShapeDtypeStruct(shape or value.shape, value.dtype, sharding=sharding, weak_type=weak)


def specs_of(arrays: Any, rows: int, length: int) -> Any:
    """The specs of a batch's arrays, shapes (B,), (B, T) and (B, T, K), with other B and T."""
    return jax.tree.map(lambda value: spec(value, (rows, length, *value.shape[2:])[: value.ndim]), arrays)


def planned_pass(jitted: Any, mesh: Any, kind: str) -> Any:
    """`kind`: training or scoring, whose programs differ."""

    def program(rows: int, length: int, *arguments: Any) -> Program:
        several = arguments[TARGETS].shape[2:]
        name = f"a {kind} pass of {rows} x {length} tokens" + (f" with {several[0]} targets each" if several else "")
        return (kind, rows, length, *several), name, compiling(jitted, mesh, *arguments)

    def longer(params: Any, batch: Any) -> list[Program]:
        found, specs = [], jax.tree.map(spec, params)
        for length in reversed(lengths(programs.limit)):  # the longest take longest
            rows = full_rows(length, programs.micro_batch or batch[0].shape[0])
            found.append(program(rows, length, *specs, *specs_of(batch, rows, length)))
        return found

    def run(pending: Any, lora_params: Any, others: Any, *batch: Any) -> Any:
        """Wraps a pass. The first one, also a tiny one of a probe, starts those of full micro batches."""
        params, own = (pending, lora_params, others), program(*batch[0].shape, pending, lora_params, others, *batch)
        result = programs.get(*own)
        more = longer(params, batch) if programs.first(own[0]) and programs.limit else []
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
        if programs.limit and new > begun.get(flags, -1):
            begun[flags] = new
            programs.add(self.ahead(flags, programs.limit, new))
        return ended

    return chunk


def started(stock_init: Any) -> Any:
    def init(self: Any, base_model: str, config: Any, process_id: int) -> None:
        """Wraps JaxBackendImpl.__init__: on a GPU sampling waves are compiled before anybody asks for one."""
        stock_init(self, base_model, config, process_id)
        if programs.limit and on_gpu() and self.mesh.size == 1 and not os.environ.get(FOLDER):
            programs.add(self.seats.ahead(PLAIN, programs.limit))

    return init


def planned_scores(jitted: Any) -> Any:
    begun = False

    def program(model: Any, ids: Any, mask: Any, rest: Any) -> Program:
        compile_it = compiling(jitted, ids.sharding.mesh, model, ids, mask, *rest)
        name = "a scoring of {} x {} tokens".format(*ids.shape)
        return ("score", *ids.shape, *settings_of(rest)), name, compile_it

    def longer(model: Any, ids: Any, mask: Any, rest: Any) -> list[Program]:
        found, model = [], jax.tree.map(spec, model)
        for length in reversed(lengths(programs.limit)):
            rows = full_rows(length, programs.seats or ids.shape[0])
            tables = specs_of((ids, mask), rows, length)
            found.append(program(model, tables[0], tables[1], rows_of(rest, rows)))
        return found

    def run(model: Any, ids: jax.Array, mask: jax.Array, *rest: Any) -> Any:
        """Wraps the scoring of prompts. Started by the first one."""
        nonlocal begun
        own = program(model, ids, mask, rest)
        compiled = programs.get(*own)
        more = longer(model, ids, mask, rest) if programs.limit and not begun else []
        begun |= bool(more)
        programs.first(own[0])
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
    return [spec(value, (rows, *value.shape[1:])) if isinstance(value, jax.Array) else value for value in rest]


def with_programs(stock_create: Any) -> Any:
    def create(self: Any) -> None:
        """Wraps JaxBackendImpl._create_loss_and_grad_fn, which makes the two passes."""
        stock_create(self)
        if self.config.enforce_eager:
            return
        programs.clear()
        programs.room.limit_bytes = int(self.config.memory_limit_gib * GIB)
        limit = self.config.warm_up_tokens
        programs.limit = limit if limit >= 0 else ON_GPU if on_gpu() else 0
        programs.micro_batch = max(0, self.config.train_micro_batch_size)
        programs.seats = max(0, self.config.sample_max_num_sequences)
        self.training_pass = self._forward_backward_and_accumulate
        self._forward_backward_and_accumulate = planned_pass(self.training_pass, self.mesh, "training")
        self._forward = planned_pass(self._forward, self.mesh, "scoring")

    return create


def apply() -> None:
    class BackendConfig(backend.JaxBackendConfig):
        warm_up_tokens: int = Field(
            default=-1, ge=-1, description="Lengths up to which programs are compiled ahead; -1: 8192 on a GPU, else 0"
        )
        memory_limit_gib: float = Field(default=0, ge=0, description="Memory of the engine on a CPU; 0: the cgroup's")

    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl._create_loss_and_grad_fn = with_programs(backend.JaxBackendImpl._create_loss_and_grad_fn)
    Seats._chunk = planned_chunks(Seats._chunk)
    GeneratorMixin._score = staticmethod(planned_scores(GeneratorMixin._score))
