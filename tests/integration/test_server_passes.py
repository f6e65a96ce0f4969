"""What a pass computes without routing and in blocks is what skyrl's own layers compute; its memory has a bound."""

from pathlib import Path
from typing import Any

import pytest

from scripts.models import tiny_model
from tests.support.engine_programs import results

ENGINE = """
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
import repairs
from flax import nnx
from skyrl.tx.layers.lora import LoRAExpert, LoRAMixin
stock = LoRAMixin.apply_lora, LoRAExpert.__call__
repairs.apply("engine", [name for name in repairs.NAMES if name != "blocks"])
from skyrl.backends import jax as backend
from skyrl.tinker import types
from jax._src.ad_checkpoint import name_p
from repairs import engine_blocks, engine_lora, engine_slots
from tests.support.engine_programs import pass_of

settings = {"max_lora_adapters": 3, "max_lora_rank": 8, "train_micro_batch_size": 2, "sample_max_num_sequences": 4}
settings |= {"gradient_checkpointing": True, "warm_up_tokens": 0}
LENGTHS = (200, 190, 60)

engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
engine.create_model("m", types.LoraConfig(rank=8, alpha=16.0, seed=1))
keys = iter(jax.random.split(jax.random.key(7), 1000))

def noise(path, value):  # fresh adapters change nothing
    return value + 0.05 * jax.random.normal(next(keys), value.shape) if path[-2].key == "lora_B" else value

nnx.update(engine.lora_params, jax.tree.map_with_path(noise, engine.lora_params))

def trained():
    engine._create_loss_and_grad_fn()  # with what is applied by now
    result = engine.forward_backward(pass_of(types, *LENGTHS))["r"]
    gradient = jax.tree.leaves(engine.gradients.pop("m").total)
    logprobs = [np.asarray(output["logprobs"]["data"]) for output in result.loss_fn_outputs]
    return result.metrics["loss:sum"], logprobs, [np.asarray(leaf) for leaf in gradient]

def difference(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))

def compared(one, other):
    largest = max(float(np.abs(leaf).max()) for leaf in one[2])
    return [abs(one[0] / other[0] - 1), difference(one[1], other[1]), difference(one[2], other[2]) / largest]

def logits_of(model, adapters):
    ids = jnp.asarray([[(7 * row + i) % 250 for i in range(40)] for row in range(len(adapters))])
    with jax.set_mesh(engine.mesh):
        output = model(ids, attention_mask=jnp.ones_like(ids), adapter_indices=jnp.asarray(adapters))
        return [np.asarray(row) for row in model.compute_logits(output.last_hidden_state, jnp.asarray(adapters))]

plain = trained()
view = engine_slots.with_slots(engine.model, 3)
taken = engine_slots.take(engine_slots.slots_of(engine.model), 1)
nnx.update(view, engine_slots.put(engine_slots.slots_of(view), 1, taken))
mixed = logits_of(view, [1, 0, 2, 1])
LoRAMixin.apply_lora, LoRAExpert.__call__ = stock
found = {"several adapters": difference(mixed, logits_of(view, [1, 0, 2, 1]))}
found["moved"] = difference(mixed[:1], mixed[1:2])
routed = trained()
found["without routing"] = compared(routed, plain)
engine_lora.apply()
engine_blocks.TOKENS, engine_blocks.QUERIES = 64, 64
repairs.apply("engine", ["blocks"])
for kept in (1.5, 100):  # of one layer, of both: a pass has two rows of 256 tokens
    engine_blocks.keeping = engine_blocks.Keeping(kept * 2 * 256, 0.0, 1, 1)
    assert len(engine_blocks.segments(2, 2 * 256)) == (2 if kept < 2 else 1)
    found[f"in blocks, {kept} kept"] = compared(routed, trained())
engine_blocks.keeping = engine_blocks.Keeping(0.0, 0.0, 1 << 20, 1, 1, float(1 << 40))
(_, policy), *others = engine_blocks.segments(2, 64)
assert not others and policy(name_p, name=engine_blocks.INPUT).dst == "pinned_host"
found["inputs on the host"] = compared(routed, trained())
print("RESULT", json.dumps(found))
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "size"), [("qwen3", "tiny"), ("llama", "tiny"), ("qwen3", "tiny-moe")])
def test_passes_without_routing_and_in_blocks_give_what_skyrl_computes(
    server_env: None, tiny_model_dir: Path, tmp_path: Path, kind: Any, size: str
) -> None:
    model = tmp_path / "model"
    tiny_model.write(tiny_model_dir, model, kind, "float32", size)
    found = results(model, ENGINE)
    assert found.pop("moved") > 1e-3, "the adapters differ"
    assert found.pop("several adapters") < 1e-4, "logits of some 1 to 10"
    assert len(found) == 4
    for loss, logprobs, gradient in found.values():
        assert loss < 1e-5 and gradient < 1e-5, "relative"
        assert logprobs < 5e-5, "nats of some -6"


MEMORY = """
import json, sys
import jax
import jax.numpy as jnp
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from repairs import engine_blocks, engine_memory, engine_programs, engine_waves

settings = {"max_lora_adapters": 2, "max_lora_rank": 4, "sample_max_num_sequences": 4, "gradient_checkpointing": True}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)

def scoring(rows, tokens, best=0):
    ids = jnp.zeros((rows, tokens), jnp.int32)
    floats, whole = jnp.ones(rows), jnp.zeros(rows, jnp.int32)
    keys = jax.vmap(jax.random.PRNGKey)(whole)
    arguments = engine.samplers.model, ids, ids, whole, floats, keys, whole, floats, 0, False, best
    return engine_programs.needed(engine_programs.compiling(engine_waves.score, engine.mesh, *arguments)())

engine_blocks.keeping = engine_blocks.Keeping()
found = {"scoring": [scoring(1, 2048), scoring(4, 4096)], "likeliest": scoring(4, 4096, 16)}
found["pass"] = [engine_memory.scratch(engine, tokens) for tokens in (4096, 16384)]
print("RESULT", json.dumps(found))
"""


@pytest.mark.nightly
def test_scoring_holds_no_logits_of_a_whole_prompt_and_passes_grow_with_their_tokens(
    server_env: None, tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    tiny_model.write(tiny_model_dir, model, "qwen3", "float32", "wide")
    found = results(model, MEMORY)
    logits = 2048 * 151_936 * 4
    short, long = found["scoring"]
    assert short < 2 * logits, "bytes: two copies of 1,024 tokens' logits, and more"
    assert long - short < 0.1 * logits, "eight times the tokens"
    assert found["likeliest"] < long + logits, "16 tokens at each place: of a block at a time, too"
    short, long = found["pass"]
    assert (long - short) / (16_384 - 4096) < 2 * short / 4096, "bytes a token: no scores of each pair of tokens"


TIED = """
import json, sys
import jax
import jax.numpy as jnp
from repairs import engine_tied

engine_tied.CHUNK = 16
keys = jax.random.split(jax.random.key(0), 4)
exact_hidden, exact_table = jax.random.normal(keys[0], (50, 32)), jax.random.normal(keys[1], (300, 32))
targets, given = jax.random.randint(keys[2], (50,), 0, 300), jax.random.normal(keys[3], (50,))

def stock(hidden, table):
    logits = (hidden @ table.T).astype(jnp.float32)
    return jnp.take_along_axis(logits, targets[:, None], 1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)

def differentiated(function, dtype):
    hidden, table = exact_hidden.astype(jnp.bfloat16).astype(dtype), exact_table.astype(jnp.bfloat16).astype(dtype)
    values, pull = jax.vjp(lambda hidden: function(hidden, table), hidden)
    return values, pull(given)[0].astype(jnp.float32)

def far(one, other):
    return [float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(one, other)]

exact, found = differentiated(stock, jnp.float32), {}
for name in ("float32", "bfloat16"):
    own = differentiated(lambda hidden, table: engine_tied.tied(hidden, table, targets), jnp.dtype(name))
    found[name] = [far(own, exact), far(differentiated(stock, jnp.dtype(name)), exact)]
print("RESULT", json.dumps(found))
"""


def test_logits_of_tied_embeddings_have_the_derivatives_that_jax_computes(server_env: None) -> None:
    found = results(Path("none"), TIED)
    (own, _), (rounded, stock) = found["float32"], found["bfloat16"]
    assert max(own) < 2e-6
    assert rounded[0] < 1e-5 < stock[0], "logits are float32: the stock ones are rounded"
    assert rounded[1] < max(stock[1], 1e-2), "no rounder than the stock one"


HEADS = """
import json, sys
from types import SimpleNamespace
import jax
import jax.numpy as jnp
from flax import nnx
from skyrl.tx.layers.lora import LoRAEmbed, LoRALinear
from skyrl.tx.models import llama3
from repairs import engine_logprobs

rounded, rows = jnp.bfloat16, nnx.initializers.normal(1.0)
common = dict(sharding=(None, None), dtype=rounded, max_lora_adapters=2, max_lora_rank=4, rngs=nnx.Rngs(0))
auto = (jax.sharding.AxisType.Auto,)
with jax.set_mesh(jax.make_mesh((1,), ("tp",), axis_types=auto)):
    tied = LoRAEmbed(300, 32, embedding_init=rows, **common)
    own = LoRALinear(32, 300, use_bias=False, kernel_init=rows, **common)
    own.lora_A[...] += 1
    own.lora_B[...] += 0.5
hidden = jax.random.normal(jax.random.key(1), (2, 25, 32)).astype(rounded)
given = jax.random.normal(jax.random.key(2), (2, 25, 300))
adapters = jnp.array([0, 1])
models = [SimpleNamespace(lm_head=None, model=SimpleNamespace(embed_tokens=tied)), SimpleNamespace(lm_head=own)]

def differentiated(head, hidden):
    values, pull = jax.vjp(lambda hidden: head(hidden, adapters), hidden)
    return values.astype(jnp.float32), pull(given.astype(values.dtype))[0].astype(jnp.float32)

def exact_of(kernel, low_rank):
    kernel = kernel.astype(jnp.float32)
    return lambda hidden, _: hidden @ kernel + low_rank * hidden.sum(axis=-1, keepdims=True)

exact = [exact_of(tied.embedding[...].T, 0), exact_of(own.kernel[...], 0.5 * 4)]

def far():
    found = []
    for model, right in zip(models, exact):
        ends = differentiated(right, hidden.astype(jnp.float32))
        pairs = zip(differentiated(llama3.Llama3ForCausalLM.get_lm_head(model), hidden), ends)
        found.append([float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs])
    return found

stock = far()
engine_logprobs.apply()
print("RESULT", json.dumps([stock, far()]))
"""


def test_the_output_layer_of_a_bfloat16_model_gives_float32(server_env: None) -> None:
    """Tied and not, the latter with an adapter, whose own part may be rounded."""
    (stock, _), (exact, own) = results(Path("none"), HEADS)
    assert exact[0] < 1e-6 < 1e-3 < stock[0], "logits of tied embeddings"
    assert own[0] < 5e-3 and max(exact[1], own[1]) < 1e-2, "products with an adapter; derivatives"
