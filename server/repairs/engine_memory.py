"""What fits into the memory, measured at the start: healthz says it, and requests beyond it are refused at once.

Upstream: skyrl/backends/jax.py bounds passes and waves by their number of sequences, whatever their length; what does
not fit is found out when it is computed.
Here two short training passes are compiled and their scratch memory is extended to longer ones: layers, attention and
logits are computed in blocks (engine_blocks), so that it grows with the tokens. Seats need their keys and values, those
of the prompts that are computed twice more, and each sequence the states of linear attention. Where a program turns out
larger, engine_programs refuses it and smaller ones are computed.
"""

# pyright: reportMissingImports=false
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.backends import jax as backend
from skyrl.tx.utils.models import is_stacked_path
from skyrl.utils.log import logger

from repairs import engine_blocks, engine_load, engine_seats, engine_shapes
from repairs.engine_losses import settings_like
from repairs.engine_programs import compiling, needed, programs
from repairs.machine import GIB

TAKEN_FILE = "SKYRL_TX_TAKEN_FILE"  # in the environment: what mark_taken makes
MEASURED = 8192, 16384  # tokens: blocks of layers and of logits are as large as they get
USED = 0.9  # of what is free: a pool has holes, and small things come and go
KEPT = 0.72  # of what is free, with what passes keep besides
ADAM = 4  # copies of an adapter in float32 besides its weights: two moments, a gradient, and one that is added to it
LEAST = 2048  # tokens of a pass that keeps everything; shorter ones keep nothing rather
LARGE = 2_000_000_000  # weights from which on PASS tokens are enough
MOST_PASS = 1 << 16  # tokens
ENOUGH = 8  # prompts that come by and by are computed in parts of a whole pass
MOST = 1 << 20  # tokens; no model has a longer context


def pass_of(self: Any, rows: int, tokens: int) -> tuple:
    """What training_pass is called with, or what stands for it: shapes (rows, tokens) and (rows,)."""
    table, row = ((rows, tokens), jnp.float32), ((rows,), jnp.int32)
    ids = (rows, tokens), jnp.int32
    config = settings_like(((rows,), jnp.float32), table)
    shapes = ids, ids, row, ids, table, row, table, table, config
    batch = jax.tree.map(lambda one: jax.ShapeDtypeStruct(*one), shapes, is_leaf=is_shape)
    return jax.eval_shape(self.zero_gradient), self.lora_params, self.non_lora_params, *batch


def scratch(self: Any, tokens: int) -> int:
    """Bytes of a training pass of one datum."""
    return needed(compiling(self.training_pass, self.mesh, *pass_of(self, 1, tokens))())


def is_shape(value: Any) -> bool:
    return (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple) and not isinstance(value[1], tuple)
    )


def kept_bytes(self: Any) -> tuple[int, int]:
    """Of a token in a layer: the result of attention, and those of all linear layers with their low-rank parts."""
    config = self.model_config.get_config()
    item = jnp.dtype(backend.get_dtype(config.dtype)).itemsize
    layers, products = config.num_hidden_layers, 0
    for path, value in jax.tree_util.tree_flatten_with_path(self.non_lora_params)[0]:
        names = [part.key for part in path if hasattr(part, "key")]
        if "layers" in names and "kernel" in names:
            products += (value.shape[-1] + self.config.max_lora_rank) * (layers if is_stacked_path(path) else 1)
    return attention_width(config) * item + 4 * config.num_attention_heads, max(products // layers, 1) * item


def input_bytes(self: Any) -> int:
    """Of a token in a layer: what the layer is given, kept for the backward pass."""
    config = self.model_config.get_config()
    return config.hidden_size * jnp.dtype(backend.get_dtype(config.dtype)).itemsize


def attention_width(config: Any) -> int:
    return config.num_attention_heads * head_size(config)


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def wave_bytes(self: Any) -> int:
    """Of the keys and values of a token."""
    config = self.model_config.get_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    item = jnp.dtype(backend.get_dtype(config.dtype)).itemsize
    return 2 * (config.num_hidden_layers - linear_layers(config)) * heads * head_size(config) * item


def linear_layers(config: Any) -> int:
    return sum(kind == "linear_attention" for kind in getattr(config, "layer_types", None) or ())


def state_bytes(self: Any) -> int:
    """Of what a sequence has of linear attention, whatever its length (engine_hybrid)."""
    config = self.model_config.get_config()
    if not (count := linear_layers(config)):
        return 0
    item = jnp.dtype(backend.get_dtype(config.dtype)).itemsize
    values = config.linear_num_value_heads * config.linear_value_head_dim
    channels = 2 * config.linear_num_key_heads * config.linear_key_head_dim + values
    return count * (4 * values * config.linear_key_head_dim + item * channels * (config.linear_conv_kernel_dim - 1))


def reserved(self: Any) -> int:
    """Bytes that adapters will take when every slot is in use."""
    slots = self.config.max_lora_adapters
    adapter = sum(leaf.nbytes for leaf in jax.tree.leaves(self.lora_params)) // slots
    return adapter * (ADAM * (slots - 1))


def whole_pass(self: Any) -> int:
    """Tokens of a pass that is enough work for a GPU: the smaller the model, the more."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(self.non_lora_params))
    return min(max(engine_shapes.PASS, engine_shapes.power_of_two(LARGE * engine_shapes.PASS // weights)), MOST_PASS)


def measured(self: Any) -> list[int]:
    """Bytes of passes of MEASURED tokens; from a file beside the compiled programs, where this was measured before."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    device = jax.local_devices()[0].device_kind
    known = repr((self.model_config.to_json_string(use_diff=False), self.config, jax.__version__, device)).encode()
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    file = Path(folder or "", f"memory-{hashlib.sha256(known + sources).hexdigest()[:24]}.json")
    if folder and file.exists():
        return json.loads(file.read_text())
    with ThreadPoolExecutor(len(MEASURED)) as threads:  # each takes minutes where layers are unrolled
        found = list(threads.map(partial(scratch, self), MEASURED))
    if folder:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".new").write_text(json.dumps(found))
        os.replace(file.with_suffix(".new"), file)
    return found


def longest(free: float, first: float, per_token: float) -> int:
    """The longest padded length that fits; 0: none."""
    return max((one for one in engine_shapes.lengths(MOST) if first + per_token * one <= free), default=0)


def plan(self: Any) -> dict[str, Any]:
    """Sets the bounds of passes and waves. Returns what healthz says; {} where the memory is not known."""
    free = programs.room.free()
    if free is None:
        return {}
    free -= reserved(self)
    short, long = measured(self)
    per_token = max(long - short, 1) / (MEASURED[1] - MEASURED[0])
    first = max(short - per_token * MEASURED[0], 0.0)
    attention, products = kept_bytes(self)
    layers, inputs, host = self.model_config.get_config().num_hidden_layers, input_bytes(self), programs.room.host()
    trained = longest(USED * free, first, per_token)
    with_host = min(longest(USED * free, first, per_token - layers * inputs), longest(host, 0, layers * inputs))
    trained = max(trained, with_host)
    engine_blocks.keeping = engine_blocks.Keeping(KEPT * free - first, per_token, attention, products, inputs, host)
    kept = longest(KEPT * free, first, per_token + layers * (attention + products))  # what keeps everything
    most = min(kept if kept >= LEAST else int((USED * free - first) / per_token), whole_pass(self))
    engine_shapes.pass_tokens = max(most, engine_shapes.SHORTEST)
    engine_seats.fill_tokens = whole_pass(self) // ENOUGH
    engine_seats.state_tokens = -(-state_bytes(self) // wave_bytes(self))
    engine_seats.wave_tokens = max(1, int(USED * free / wave_bytes(self)))
    return {
        "limit_gib": round((programs.room.limit() or 0) / GIB, 2),
        "free_gib": round(free / GIB, 2),
        "trained_tokens": trained,
        "host_gib": round(host / GIB, 2),
        "trained_gib_per_1000": round(per_token * 1000 / GIB, 4),
        "pass_tokens": engine_shapes.pass_tokens,
        "wave_tokens": engine_seats.wave_tokens,
        "seats": max(0, self.config.sample_max_num_sequences),
    }


def planning(stock_init: Any) -> Any:
    def init(self: Any, base_model: str, config: Any, process_id: int) -> None:
        """Wraps JaxBackendImpl.__init__."""
        mark_taken()
        stock_init(self, base_model, config, process_id)
        if not config.enforce_eager:
            found = plan(self)
            logger.info(f"memory: {found}")
            engine_load.load.note(memory=found)

    return init


def mark_taken() -> None:
    """Tells the server that JAX has taken its share of a GPU, as it does at the beginning: vLLM may take its own."""
    file = os.environ.get(TAKEN_FILE)
    jax.block_until_ready(jnp.zeros(()))  # the first array makes the pool
    stats = jax.local_devices()[0].memory_stats() or {}
    if file and stats.get("pool_bytes", 0) >= 0.9 * stats.get("bytes_limit", 1):
        Path(file).touch()


def compact(model: Any) -> None:
    """Takes the weights out of a GPU's memory and puts them back: loading leaves them with holes between."""
    state = nnx.state(model)
    arrays, tree = jax.tree.flatten(state)
    if sum(array.nbytes for array in arrays) > programs.room.host():
        return
    places, values = [array.sharding for array in arrays], jax.device_get(arrays)
    for array in arrays:
        array.delete()
    nnx.update(model, jax.tree.unflatten(tree, list(map(jax.device_put, values, places))))


def compacting(stock_load: Any) -> Any:
    def load(checkpoint_dir: Any, config: Any, model: Any) -> None:
        """Wraps load_safetensors for the base model."""
        stock_load(checkpoint_dir, config, model)
        compact(model)

    return load


def apply() -> None:
    backend.load_safetensors = compacting(backend.load_safetensors)
    backend.JaxBackendImpl.__init__ = planning(backend.JaxBackendImpl.__init__)
