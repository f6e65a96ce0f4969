"""Qwen3.5, whose layers are linear attention by turns with attention, against transformers in float32."""

import json
from pathlib import Path

import numpy as np


from scripts.models import tiny_hybrid
from tests.support import hybrid_reference
from tests.support.engine_programs import results
from tests.support.hybrid_reference import ADAPTERS, LENGTHS

CLOSE = 1e-4  # nats, and of a gradient its share
COMPUTED = """
import json, sys, tempfile
from pathlib import Path
sys.path[:0] = ["server"]
sys.path.append("server/shims")
import jax
import numpy as np
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_gather, engine_hybrid, engine_samplers
from scripts.models import tiny_hybrid
from tests.support import hybrid_reference
from tests.support.engine_programs import pass_of, sample_of
from tests.support.hybrid_reference import ADAPTERS, ALPHA, LENGTHS, NEW, RANK, TRAINED, along, ids, weights

settings = {"max_lora_adapters": 2, "max_lora_rank": 8, "sample_max_num_sequences": 32, "train_micro_batch_size": 4}
settings |= {"gradient_checkpointing": True}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
files = {"": ""}
for name in ADAPTERS[1:]:
    files[name] = str(Path(tempfile.mkdtemp(), f"{name}.tar.gz"))
    hybrid_reference.write_adapter(name, Path(files[name]), tiny_hybrid.SHAPES["tiny"])

def batch(rows, new, temperature, scored=False):
    "Rows: (adapter, tokens)."
    made = sample_of(types, *[len(tokens) for _, tokens in rows], new=new, scored=scored)
    for one, (_, tokens) in zip(made.all_model_inputs, rows):
        one.chunks[0].tokens[:] = tokens
    params = [one.model_copy(update={"temperature": temperature}) for one in made.all_sampling_params]
    slices = [(str(row), "", row, row + 1, scored, 0) for row in range(len(rows))]
    paths = [files[name] for name, _ in rows]
    update = {"all_sampling_params": params, "all_checkpoint_paths": paths, "request_batch_slices": slices}
    return engine.sample(made.model_copy(update=update))

def answers(lengths):
    "Greedy ones, of all adapters in one batch."
    rows = [(name, ids(length)) for length in lengths for name in ADAPTERS]
    done = batch(rows, NEW, 0.0)
    found = [done[str(row)].sequences[0] for row in range(len(rows))]
    return {f"{name} {len(tokens)}": [one.tokens, one.logprobs] for (name, tokens), one in zip(rows, found)}

def drawn():
    "The largest difference of sampled log-probabilities from scored ones, over several lengths."
    rows = [(name, ids(length)) for length in (3, 100, 129) for name in ADAPTERS]
    done = [batch(rows, NEW, 1.0)[str(row)].sequences[0] for row in range(len(rows))]
    texts = [(name, [*tokens, *one.tokens]) for (name, tokens), one in zip(rows, done)]
    scored = batch(texts, 1, 1.0, scored=True)
    scores = [scored[str(row)].prompt_logprobs[-NEW:] for row in range(len(rows))]
    return max(np.abs(np.array(one.logprobs) - score).max() for one, score in zip(done, scores))

def gradients():
    engine.create_model("m", types.LoraConfig(rank=RANK, alpha=float(ALPHA), seed=1))
    slot = engine.models["m"].adapter_index
    with jax.set_mesh(engine.mesh):
        engine_samplers.fill_slot(engine.model, slot, files["one"])
    made = pass_of(types, *TRAINED)
    for row, length in enumerate(TRAINED):
        tokens = ids(length + 1, seed=1)
        made.all_model_inputs[row].chunks[0].tokens[:] = tokens[:-1]
        made.all_targets[row][:], made.all_token_weights[row][:] = tokens[1:], weights(length)
    engine.forward_backward(made)
    total = jax.tree.map_with_path(engine_gather.turned, jax.device_get(engine.gradients["m"].total))
    host = engine_gather.on_host(engine.own_view, total)
    tensors = engine_gather.tensors_of(host, engine.models["m"].lora_config)
    names = list(hybrid_reference.adapter("one", tiny_hybrid.SHAPES["tiny"]))
    return {name: along(tensors[engine_gather.PREFIX + name], number) for number, name in enumerate(names)}

found = {"answers": answers([one for one in LENGTHS if one <= 128]) | answers([one for one in LENGTHS if one > 128])}
rows = [(name, ids(max(LENGTHS))) for name in ADAPTERS]
done = batch(rows, 1, 1.0, scored=True)
found["prompts"] = {name: done[str(row)].prompt_logprobs for row, (name, _) in enumerate(rows)}
found |= {"drawn": float(drawn()), "gradients": gradients()}
print("RESULT", json.dumps(found))
"""


def apart(one: list[float], other: list[float]) -> float:
    return float(np.abs(np.array(one) - other).max())


def test_prompts_answers_and_gradients_are_those_of_transformers(server_env: None, tmp_path: Path) -> None:
    """Prompts of 1 to 700 tokens, padded and not; two adapters and the base model in one batch."""
    model = tmp_path / "model"
    tiny_hybrid.write(hybrid_reference.TOKENIZER, model)
    known, found = json.loads(hybrid_reference.FILE.read_text()), results(model, COMPUTED)
    for name in ADAPTERS:
        assert apart(found["prompts"][name], [None, *known["prompts"][name]][-len(found["prompts"][name]):]) < CLOSE
        for length, (tokens, logprobs) in zip(LENGTHS, known["answers"][name], strict=True):
            sampled, scores = found["answers"][f"{name} {length}"]
            assert sampled == tokens, (name, length)
            assert apart(scores, logprobs) < CLOSE, (name, length)
    assert found["drawn"] < CLOSE, "the sampler is not the trainer"
    for name, (length, *products) in known["gradients"].items():
        assert apart(found["gradients"][name], [length, *products]) < CLOSE * length, name
