"""What is computed for seats (engine_seats): prompts, their way to free seats, and a chunk of tokens of all seats.

Upstream: skyrl/tx/utils/generator.py, GeneratorMixin._prefill_and_decode is one program for all of it, which ends when
the longest sequence has ended, and has another shape for each answer limit and each number of stop tokens.
Here a sequence's tokens are drawn as there: one key for each seed, split at each token.
"""

# pyright: reportMissingImports=false
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.tx.utils import generator
from skyrl.tx.utils.generator import KVCache

from repairs import engine_load
from repairs.engine_lora import flattened
from repairs.engine_programs import Program, TooLarge, compiling, programs
from repairs.engine_shapes import SHORTEST
from repairs.engine_slots import has_slots

Flags = tuple[int, int, bool]  # width of the table of stop tokens, the most of top_k, whether any top_p is below 1
UNSTACKED = ("unstacked",), "the weights of each layer"
CHUNK = 256  # most tokens of a seat before the host looks again


@jax.tree_util.register_dataclass
@dataclass
class State:
    """Of all seats, on the device: `logits` (B, V) of the next token, `keys` (B, 2) of its random number."""

    cache: KVCache
    logits: jax.Array
    keys: jax.Array


@jax.jit
def prefilled(model: Any, ids: jax.Array, mask: jax.Array, adapters: jax.Array, keys: jax.Array) -> State:
    """The state after prompts (B, T), whose seats have room for no more."""
    output = model(ids, attention_mask=mask, adapter_indices=adapters)
    last = jnp.take_along_axis(output.last_hidden_state, (mask.sum(axis=1) - 1)[:, None, None], axis=1)
    return State(output.kv_cache, model.compute_logits(last, adapters)[:, 0], keys)


@partial(jax.jit, donate_argnames=("state",))
def placed(state: State, new: State, seats: jax.Array) -> State:
    """The state with new sequences on these seats (B,); nothing old is left there. One beyond the last is nobody's."""

    def put(old: jax.Array, given: jax.Array) -> jax.Array:
        if not old.size:
            return old
        pads = [(0, 0)] * given.ndim
        if given.ndim > 2 and given.shape[1] < old.shape[1]:
            pads[1] = (0, old.shape[1] - given.shape[1])
        return old.at[seats].set(jnp.pad(given, pads).astype(old.dtype), mode="drop")

    return jax.tree.map(put, state, new)


def drawn(
    logits: jax.Array, keys: jax.Array, temperatures: jax.Array, top_k: Any, top_p: Any, max_top_k: int, use_top_p: bool
) -> jax.Array:
    """The next token of each seat (B,), as upstream draws it; of temperature 0: the likeliest."""
    scaled = logits / jnp.where(temperatures == 0, 1.0, temperatures)[:, None]
    if max_top_k > 0:
        scaled = generator.apply_top_k_batch(scaled, top_k, max_top_k)
    if use_top_p:
        scaled = generator.apply_top_p_batch(scaled, top_p)
    tokens = jax.vmap(jax.random.categorical)(keys, scaled)
    return jnp.where(temperatures == 0, jnp.argmax(logits, axis=-1), tokens).astype(jnp.int32)


def after(
    model: Any, state: State, token: jax.Array, active: jax.Array, keys: jax.Array, adapters: jax.Array, layers: Any
) -> State:
    """The state after one more token (B,) of each seat; one that is not active stays where it is, and reads little."""
    place, room = state.cache.cache_position, room_in(state)
    output = model(
        token[:, None],
        attention_mask=(jnp.arange(room) <= jnp.where(active, place, 0)[:, None]).astype(jnp.int32),
        positions=place[:, None],
        kv_cache=state.cache,
        adapter_indices=adapters,
        decode_layers=layers,
    )
    logits = model.compute_logits(output.last_hidden_state, adapters)[:, 0]
    cache = output.kv_cache
    cache.cache_position = jnp.where(active, cache.cache_position, place)
    return State(cache, logits.astype(state.logits.dtype), keys)


@jax.jit
def unstacked(model: Any) -> Any:
    """The weights of each layer by itself, which is a copy of them; nothing in the place of adapters."""

    def own(path: tuple, value: jax.Array) -> jax.Array:
        return jnp.zeros(0, value.dtype) if has_slots(path) else value

    return jax.tree.map_with_path(own, model.get_decode_layers())


def layers_of(model: Any, weights: Any) -> Any:
    """What unstacked() gave, with the adapters that the model has by now."""

    def own(path: tuple, value: jax.Array, weight: jax.Array) -> jax.Array:
        return value if has_slots(path) else weight

    return jax.tree.map_with_path(own, flattened(model.get_decode_layers()), weights)


@partial(jax.jit, static_argnames=("max_top_k", "use_top_p"), donate_argnames=("state",))
def advance(
    model: Any,
    weights: Any,
    state: State,
    adapters: jax.Array,
    temperatures: jax.Array,
    stops: jax.Array,
    left: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    limits: jax.Array,
    max_top_k: int,
    use_top_p: bool,
) -> tuple[State, jax.Array, jax.Array, jax.Array]:
    """Samples at most `left` (B,) tokens of each seat, none of an empty one. `weights`: what unstacked() gave;
    `stops`: (B, S), -1 for none.

    Ends after limits[0] tokens, or when limits[1] seats have ended. Returns tokens, log-probabilities (B, CHUNK) and
    counts (B,).
    """
    seats, layers, taken = left.shape[0], layers_of(model, weights), (left > 0).sum()
    filters = top_k, top_p, max_top_k, use_top_p

    def goes_on(carry: tuple) -> jax.Array:
        _, left, step, *_ = carry
        now = (left > 0).sum()
        return (step < limits[0]) & (now > 0) & (taken - now < limits[1])

    def one_token(carry: tuple) -> tuple:
        state, left, step, tokens, logprobs, counts = carry
        split = jax.vmap(jax.random.split)(state.keys)
        token = drawn(state.logits, split[:, 1], temperatures, *filters)
        logprob = model.logits_to_logprobs(state.logits, token)
        active = left > 0
        ended = (token[:, None] == stops).any(axis=1)
        return (
            after(model, state, token, active, split[:, 0], adapters, layers),
            jnp.where(active & ~ended, left - 1, 0),
            step + 1,
            tokens.at[:, step].set(token),
            logprobs.at[:, step].set(logprob),
            counts + active,
        )

    found = jnp.zeros((seats, CHUNK), jnp.int32), jnp.zeros((seats, CHUNK), jnp.float32), jnp.zeros(seats, jnp.int32)
    state, _, _, *found = jax.lax.while_loop(goes_on, one_token, (state, left, jnp.int32(0), *found))
    return state, *found


@partial(jax.jit, static_argnames=("room",))
def moved(value: jax.Array, seats: jax.Array, room: int) -> jax.Array:
    """The seats (B,) of an array, with more room where `room` is not 0."""
    value = value[seats]
    more = room - value.shape[1] if room and value.size else 0
    return jnp.pad(value, [(0, 0), (0, more), *[(0, 0)] * (value.ndim - 2)]) if more else value


def spec(value: Any, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    """What a program is compiled for, in the place of an array."""
    sharding = value.sharding if getattr(value, "committed", True) else None
    weak = getattr(value, "weak_type", False)  # random keys have neither
    return jax.ShapeDtypeStruct(shape or value.shape, value.dtype, sharding=sharding, weak_type=weak)


class Decoder:
    """The programs of a backend's sampling view. `weights`: of its layers, as long as somebody samples."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.weights: Any = None
        self._one: State | None = None  # shapes of one seat

    def _model(self) -> Any:
        return nnx.merge(*self.backend.samplers.parts)

    def shapes(self, count: int, room: int) -> State:
        """Of the state of so many seats."""
        one = self._one
        if one is None:
            ids, keys = jax.ShapeDtypeStruct((1, SHORTEST), jnp.int32), jax.ShapeDtypeStruct((1, 2), jnp.uint32)
            with jax.set_mesh(self.backend.mesh):
                row = jax.ShapeDtypeStruct((1,), jnp.int32)
                one = self._one = jax.eval_shape(prefilled, self._model(), ids, ids, row, keys)

        def shape(value: Any, own: int = 0) -> jax.ShapeDtypeStruct:
            rest = (own if value.size else 0, *value.shape[2:]) if own else value.shape[1:]
            return jax.ShapeDtypeStruct((count, *rest), value.dtype)

        found = jax.tree.map(shape, one)
        for name in ("keys", "values"):
            setattr(found.cache, name, [shape(layer, room) for layer in getattr(one.cache, name)])
        return found

    def empty(self, count: int, room: int) -> State:
        """Raises TooLarge."""
        shapes, free = self.shapes(count, room), programs.room.free()
        size = sum(one.size * one.dtype.itemsize for one in jax.tree.leaves(shapes))
        if free is not None and size > free:
            raise TooLarge(f"{count} seats of {room} tokens need {size} bytes of memory, {max(free, 0)} are free")
        made = programs.get(*self._of_empty(count, room))()
        return made if self.backend.mesh.size == 1 else jax.tree.map(partial(spread, self.backend.mesh), made)

    def grown(self, state: State, seats: list[int], room: int) -> State:
        """The state of these seats, with this room, an array at a time: none is there twice. Empties `state`."""
        cache, index = state.cache, jnp.array(seats, jnp.int32)
        states = [one for one in (cache.conv_states, cache.recurrent_states) if one is not None]
        for arrays, own in ((cache.keys, room), (cache.values, room), *((one, 0) for one in states)):
            for place, value in enumerate(arrays):
                arrays[place] = moved(value, index, own)
        cache.cache_position = moved(cache.cache_position, index, 0)
        return State(cache, moved(state.logits, index, 0), moved(state.keys, index, 0))

    def prompts(self, *arrays: Any) -> State:
        """prefilled() of ids, mask (B, T), adapters (B,) and keys (B, 2). Raises TooLarge."""
        return self._call(prefilled, self._of_prompts(arrays), *arrays)

    def place(self, state: State, new: State, seats: list[int]) -> State:
        """placed(). Empties `state`."""
        return self._call(placed, self._of_placing(state, new), state, new, jnp.array(seats, jnp.int32))

    def chunk(self, flags: Flags, state: State, *arrays: Any) -> tuple[State, jax.Array, jax.Array, jax.Array]:
        """advance() of what it is given after the state. Empties `state`. Raises TooLarge."""
        if self.weights is None:
            self.weights = self._call(unstacked, UNSTACKED)
        return self._call(advance, self._of_chunk(flags, state), self.weights, state, *arrays, **named(flags))

    def has(self, flags: Flags, count: int, room: int, soon: bool = False) -> bool:
        """Whether the program of a chunk is made, or `soon` will be."""
        return programs.has(("advance", count, room, *flags), soon)

    def _of_empty(self, count: int, room: int) -> Program:
        shapes = self.shapes(count, room)
        make = jax.jit(lambda: jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes))
        return ("empty", count, room), f"empty seats of {count} x {room} tokens", compiling(make, self.backend.mesh)

    def _of_prompts(self, arrays: tuple) -> tuple[Any, str]:
        count, length = arrays[0].shape
        return ("prefilled", count, length), f"prompts of {count} x {length} tokens"

    def _of_placing(self, state: State, new: State) -> tuple[Any, str]:
        sizes = [(one.logits.shape[0], room_in(one)) for one in (state, new)]
        return ("placed", *sizes), "seats of {} x {} tokens for {} x {}".format(*sizes[0], *sizes[1])

    def _of_chunk(self, flags: Flags, state: State) -> tuple[Any, str]:
        count, room = state.logits.shape[0], room_in(state)
        return ("advance", count, room, *flags), f"a sampling wave of {count} x {room} tokens"

    def _call(self, function: Any, program: tuple[Any, str], *arguments: Any, **flags: Any) -> Any:
        mesh, given = self.backend.mesh, arguments if function is placed else (self._model(), *arguments)
        engine_load.load.shape = program[1].partition(" of ")[2]
        compiled = programs.get(*program, compiling(function, mesh, *given, **flags))
        programs.first(program[0])
        with jax.set_mesh(mesh):
            return compiled(*given) if mesh.size == 1 else function(*given, **flags)

    def ahead(self, flags: Flags, count: int, room: int, prompts: list[tuple[int, int]]) -> list[Program]:
        """Programs of so many seats with this room, and of prompts (rows, tokens) for them."""
        model, mesh = jax.tree.map(spec, self._model()), self.backend.mesh

        def whole(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        state, row, real = self.shapes(count, room), whole(count), whole(count, dtype=jnp.float32)
        weights = jax.eval_shape(unstacked, model)
        given = (weights, state, row, real, whole(count, flags[0]), row, row, real, whole(2))
        found = [(*self._of_chunk(flags, state), compiling(advance, mesh, model, *given, **named(flags)))]
        found.append((*UNSTACKED, compiling(unstacked, mesh, model)))
        found.append(self._of_empty(count, room))
        for rows, length in prompts:
            arrays = (whole(rows, length), whole(rows, length), whole(rows), whole(rows, 2, dtype=jnp.uint32))
            new = self.shapes(rows, length)
            found.append((*self._of_prompts(arrays), compiling(prefilled, mesh, model, *arrays)))
            found.append((*self._of_placing(state, new), compiling(placed, mesh, state, new, whole(rows))))
        return found


def spread(mesh: Any, value: jax.Array) -> jax.Array:
    """Seats over the devices that each have a part of a batch, heads (B, T, H, D) over those with a part of a layer."""
    axes = ["fsdp", None, "tp" if value.ndim == 4 else None, None][: value.ndim]
    spec = jax.P(
        *[axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, value.shape, strict=True)]
    )
    return value if mesh.size == 1 else jax.device_put(value, jax.NamedSharding(mesh, spec))


def room_in(state: State) -> int:
    return max(one.shape[1] for one in state.cache.keys)


def named(flags: Flags) -> dict[str, Any]:
    """Of `flags` what advance() is compiled for."""
    return {"max_top_k": flags[1], "use_top_p": flags[2]}
