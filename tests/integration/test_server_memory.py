"""What does not fit into the memory is refused before it is computed; scaled positions are those of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.models import tiny_model
from tests.support import scaled_positions
from tests.support.engine_programs import results

LIMITED = """
import json, sys
import jax
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_load, engine_programs, engine_room, engine_seats, engine_shapes
from tests.support.engine_programs import pass_of, sample_of

settings = {"max_lora_adapters": 2, "max_lora_rank": 4, "sample_max_num_sequences": 4, "train_micro_batch_size": 4}
settings |= {"gradient_checkpointing": True, "memory_limit_gib": engine_room.resident() / 2**30 + 0.6}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
engine.create_model("m", types.LoraConfig(rank=4, alpha=8.0, seed=1))
planned = engine_load.load.values["memory"]

def attempt(compute):
    try:
        return compute()
    except ValueError as error:
        return str(error)

def compiled():
    return sum(engine_load.load.values[name] for name in ("compiles", "compiles_cached"))

long = pass_of(types, planned["trained_tokens"] * 8)
refused = [attempt(lambda: engine.forward_backward(long)), compiled()]
refused += [attempt(lambda: engine.forward_backward(long)), compiled()]
engine_programs.programs.room.free = lambda: 60 << 20  # bytes: less than what was planned with
engine_shapes.pass_tokens, engine_seats.wave_tokens = 8192, 1 << 30
several = engine.forward_backward(pass_of(types, *[500] * 4))["r"]
scored = engine.sample(sample_of(types, *[500] * 4, scored=True))["r"]
found = {"planned": planned, "refused": refused, "datums": len(several.loss_fn_outputs)}
found |= {"pass tokens": engine_shapes.pass_tokens, "scored": len(scored.prompt_logprobs)}
print("RESULT", json.dumps(found))
"""


def test_what_does_not_fit_is_refused_once_compiled_and_the_rest_is_computed_in_smaller_parts(
    server_env: None, tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    tiny_model.write(tiny_model_dir, model, "qwen3", "float32")
    found = results(model, LIMITED)
    planned = found["planned"]
    assert 2048 <= planned["trained_tokens"] <= 65_536 and planned["limit_gib"] < 4
    first, programs, again, same = found["refused"]
    assert all("GiB of memory" in message and "context_limit" in message for message in (first, again))
    assert same == programs, "a program that was refused is not compiled again"
    assert found["datums"] == 4 and found["pass tokens"] < 2048
    assert found["scored"] == 500


KEPT = """
import json, sys
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_blocks, engine_memory, engine_programs
from tests.support.engine_programs import pass_of

settings = {"max_lora_adapters": 3, "max_lora_rank": 4, "train_micro_batch_size": 4, "gradient_checkpointing": True}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
for name in ("m", "other"):
    engine.create_model(name, types.LoraConfig(rank=4, alpha=8.0, seed=1))
batch = pass_of(types, 2000)
plain = engine.forward_backward(batch)["r"]
before = engine.gradients.pop("m").datums
engine.gradients["other"] = "kept"

def keep(gib):
    engine_blocks.keeping = engine_blocks.Keeping(gib * 2.0**30, 0.0, 1, 1)
    known = engine.gradients
    engine._create_loss_and_grad_fn()
    engine.gradients = known
    return engine_memory.scratch(engine, 2048)

most, least = keep(2), keep(0)
keep(2)
engine_programs.programs.room.free = lambda: (most + least) // 2
smaller = engine.forward_backward(batch)["r"]
found = {"kept": [most, least], "free": engine_blocks.keeping.free, "others": engine.gradients.pop("other")}

keep(100)
engine_programs.programs.room.free = lambda: 1 << 60
def full(*_):
    engine._forward_backward_and_accumulate = stock
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17.02GiB")
stock, engine._forward_backward_and_accumulate = engine._forward_backward_and_accumulate, full
again = engine.forward_backward(batch)["r"]
found |= {"fewer": engine_blocks.keeping.free / 2**30, "datums": [before, engine.gradients["m"].datums]}
values = [one.loss_fn_outputs[0]["logprobs"]["data"] for one in (plain, smaller, again)]
found["apart"] = max(abs(a - b) for other in values[1:] for a, b in zip(values[0], other, strict=True))
print("RESULT", json.dumps(found))
"""


@pytest.mark.nightly
def test_a_pass_that_finds_the_memory_full_is_computed_again_and_keeps_less(
    server_env: None, tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    tiny_model.write(tiny_model_dir, model, "qwen3", "float32")
    found = results(model, KEPT)
    most, least = found["kept"]
    assert most > 1.05 * least, "what is kept is seen in the memory"
    assert found["free"] == 0 and found["fewer"] == 25
    assert found["others"] == "kept", "gradients of others stay"
    assert found["datums"] == [1, 2] and found["apart"] < 1e-5


POSITIONS = """
import json, pathlib, sys
import jax
import jax.numpy as jnp
import numpy as np
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from tests.support import scaled_positions
from tests.support.engine_programs import sample_of

settings = {"max_lora_adapters": 2, "max_lora_rank": 4, "sample_max_num_sequences": 1, "train_micro_batch_size": 1}
ids, positions = map(jnp.asarray, scaled_positions.tokens())
none = jnp.zeros(1, jnp.int32)

def computed(folder):
    engine = backend.JaxBackendImpl(str(folder), backend.JaxBackendConfig(**settings), 0)
    found = {}
    for name, model in (("trainer", engine.own_view), ("sampler", engine.samplers.model)):
        with jax.set_mesh(engine.mesh):
            output = model(ids, attention_mask=jnp.ones_like(ids), positions=positions, adapter_indices=none)
            logprobs = model.compute_logprobs(output.last_hidden_state, jnp.roll(ids, -1, 1), none)
        found[name] = np.asarray(logprobs)[0, :-1].tolist()
    sampled = engine.sample(sample_of(types, 40, new=6))["r"].sequences[0]
    prompt = sample_of(types, 40, scored=True)
    prompt.all_model_inputs[0].chunks[0].tokens.extend(sampled.tokens)
    scored = engine.sample(prompt)["r"].prompt_logprobs[40:]
    found["decoded"] = max(abs(one - other) for one, other in zip(sampled.logprobs, scored, strict=True))
    return found

print("RESULT", json.dumps({folder.name: computed(folder) for folder in pathlib.Path(sys.argv[1]).iterdir()}))
"""


@pytest.mark.nightly
def test_scaled_positions_are_those_of_transformers(server_env: None, tmp_path: Path) -> None:
    """Over distances of 60,000 and 100,000 tokens, in float32."""
    known = json.loads(scaled_positions.FILE.read_text())
    for name in scaled_positions.KINDS:
        scaled_positions.write_model(name, tmp_path / name)
    found = results(tmp_path, POSITIONS)
    assert sorted(found) == sorted(scaled_positions.KINDS)
    for name, of_it in found.items():
        for part in ("trainer", "sampler"):
            assert np.abs(np.array(of_it[part]) - known[name]).max() < 1e-4, (name, part)
        assert of_it["decoded"] < 1e-4, name
