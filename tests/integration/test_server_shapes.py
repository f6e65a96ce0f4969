"""Few shapes: padded passes and waves give what unpadded ones give, and other sizes compile nothing."""

from pathlib import Path
from typing import Any

import pytest
import tinker

from harbortrainer.backend.load import look
from harbortrainer.run.metrics import compile_metrics
from tests.support.engine_parts import adapters, datum, sampler, step
from tests.support.engine_programs import results

ENGINE = """
import json, sys
import jax
import numpy as np
import repairs
repairs.apply("engine", [name for name in repairs.NAMES if name not in ("shapes", "load")])
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_load, engine_programs, engine_shapes, engine_warm_up

LISTS = ("values", "returns", "rollout_logprobs")
# Those of the other tests' servers, whose programs are in the cache
settings = {"max_lora_adapters": 8, "max_lora_rank": 16, "train_micro_batch_size": 8, "sample_max_num_sequences": 8}
settings["gradient_checkpointing"] = True
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings), 0)
engine.create_model("m", types.LoraConfig(rank=8, alpha=16.0, seed=1))

def prompts(lengths):
    tokens = [[(11 * row + 3 * i) % 250 for i in range(length)] for row, length in enumerate(lengths)]
    return tokens, [types.ModelInput(chunks=[types.EncodedTextChunk(tokens=one)]) for one in tokens]

def batch_of(loss, *lengths):
    tokens, inputs = prompts(lengths)
    rows = {"all_model_ids": ["m"], "all_loss_fns": [loss], "all_loss_fn_configs": [None]}
    lists = {name: value * len(lengths) for name, value in rows.items()}
    lists |= {f"all_{name}": [[] for _ in lengths] for name in LISTS}
    lists |= {"all_targets": [one[1:] + [7] for one in tokens], "all_model_inputs": inputs}
    lists |= {"all_token_weights": [[0.0] * 9 + [0.5] * (n - 9) for n in lengths]}
    lists |= {"all_sampling_logprobs": [[-5.5] * n for n in lengths], "all_advantages": [[0.25] * n for n in lengths]}
    return types.PreparedModelPassBatch(**lists, request_batch_slices=[("r", "m", 0, len(lengths))])

def scored_by_trainer(*lengths):
    result = engine.forward(batch_of("cross_entropy", *lengths))["r"]
    return [output["logprobs"]["data"] for output in result.loss_fn_outputs]

def trained(loss, *lengths):
    result = engine.forward_backward(batch_of(loss, *lengths))["r"]
    outputs = [output[name]["data"] for output in result.loss_fn_outputs for name in sorted(output)]
    gradient = jax.tree.leaves(engine.gradients.pop("m").total)
    return result.metrics["loss:sum"], outputs, [np.asarray(leaf) for leaf in gradient]

def sampled(*lengths, scored=False):
    one = types.SamplingParams(temperature=1.0, max_tokens=1 if scored else 8, seed=3)
    params = [one.model_copy(update={"seed": row}) for row, _ in enumerate(lengths)]
    none = [""] * len(lengths)
    batch = types.PreparedSampleBatch(
        all_model_inputs=prompts(lengths)[1], all_sampling_params=params, all_model_ids=none, all_checkpoint_ids=none,
        all_checkpoint_paths=none, all_session_ids=[None] * len(lengths), needs_prompt_logprobs=scored,
        request_batch_slices=[("r", "", 0, len(lengths), scored, 0)],
    )
    result = engine.sample(batch)["r"]
    return [(one.tokens, one.logprobs + (result.prompt_logprobs or [0])[1:]) for one in result.sequences]

def scored(length):
    return sampled(length, scored=True)

def difference(one, other):
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(one, other, strict=True))

def compiled():
    return sum(engine_load.load.values[name] for name in ("compiles", "compiles_cached"))

LOSSES = {"cross_entropy": (40, 50, 21), "importance_sampling": (60, 45, 33)}
CALLS = [*((trained, loss, *sizes) for loss, sizes in LOSSES.items()), (sampled, 20, 44)]
plain = [call(*sizes) for call, *sizes in CALLS]
repairs.apply("engine", ["shapes", "load"])
engine.config = backend.JaxBackendConfig(**settings, warm_up_tokens=256)
engine._create_loss_and_grad_fn()
padded = [call(*sizes) for call, *sizes in CALLS]
scored(70)
programs = engine_programs.programs
unasked = [key for key in (*programs._queue, *programs._made, *programs._ready) if key[0] == "scoring"]
scored_by_trainer(40, 50)
programs.wait(1500)
before = compiled()
for sizes in ((40,), (128, 90), (200, 33, 150), (129,) * 9):
    trained("cross_entropy", *sizes)
    scored_by_trainer(*sizes)
for sizes in ((5,), (128, 3), (130, 256, 7)):
    sampled(*sizes)
    scored(sizes[0])
found = {"compiled": compiled() - before, "ahead": engine_load.load.values["compiles_ahead"], "unasked": unasked}
for name, one, other in zip(LOSSES, plain, padded):
    gradient = difference(one[2], other[2]) / max(float(np.abs(leaf).max()) for leaf in one[2])
    found[name] = [abs(one[0] - other[0]) / abs(one[0]), difference(one[1], other[1]), gradient]
waves = list(zip(plain[2], padded[2], strict=True))
found["same tokens"] = [a[0] == b[0] for a, b in waves]
found["sampled"] = difference([a[1] for a, _ in waves], [b[1] for _, b in waves])
found["lengths"] = [engine_shapes.pass_length(n) for n in (1, 32, 33, 128, 129, 600, 1025, 1537, 4096, 7000)]
programs.hinted = True
found["hinted"] = sorted({key[2] for key, *_ in engine_warm_up.ahead.sampled([5, 40, 300])})
print("RESULT", json.dumps(found))
"""


@pytest.fixture(scope="module")
def engine(server_env: None, tiny_model_dir: Path) -> dict[str, Any]:
    """What one engine computes without the repair `shapes` and then with it and a warm-up to 256 tokens."""
    return results(tiny_model_dir, ENGINE)


# Relative; a ratio is the exponential of a log-probability, whose rounding is bounded below.
@pytest.mark.nightly
@pytest.mark.parametrize(("loss", "most"), [("cross_entropy", 1e-6), ("importance_sampling", 5e-5)])
def test_rows_and_tokens_of_padding_change_neither_losses_nor_gradients(
    engine: dict[str, Any], loss: str, most: float
) -> None:
    loss_sum, outputs, gradient = engine[loss]
    assert loss_sum < most
    assert outputs < 5e-5, "float32 rounding of log-probabilities of some -10 nats, and of losses, at every token"
    assert gradient < 1e-5, "relative to the largest gradient"


@pytest.mark.nightly
def test_padding_of_prompts_changes_no_sample(engine: dict[str, Any]) -> None:
    assert engine["same tokens"] == [True, True]
    assert engine["sampled"] < 1e-5


@pytest.mark.nightly
def test_after_the_warm_up_no_size_compiles(engine: dict[str, Any]) -> None:
    assert engine["ahead"] >= 4, "a training and a scoring pass, a wave and a scoring wave of 256 tokens"
    assert engine["compiled"] == 0
    assert engine["unasked"] == [], "runs that do not score with the weights in training compile nothing for it"


@pytest.mark.nightly
def test_what_a_probe_samples_has_nothing_compiled_ahead(engine: dict[str, Any]) -> None:
    assert engine["hinted"] == [128, 512]


@pytest.mark.nightly
def test_lengths_are_few(engine: dict[str, Any]) -> None:
    assert engine["lengths"] == [32, 32, 128, 128, 256, 1024, 1536, 2048, 4096, 7168]


async def test_steps_after_the_second_compile_nothing(server_url: str, tiny_model_dir: Path) -> None:
    def batch(*lengths: int) -> list[tinker.Datum]:
        return [datum([(7 * row + i) % 250 for i in range(length + 1)]) for row, length in enumerate(lengths)]

    async def whole_step(number: int, *lengths: int) -> None:
        await step(training, batch(*lengths))
        client = await sampler(service, training, f"shapes-{number}")
        prompt = tinker.ModelInput.from_ints(list(range(lengths[0])))
        await client.sample(prompt, len(lengths), tinker.SamplingParams(max_tokens=8, temperature=1.0, seed=1))

    async with adapters(server_url, tiny_model_dir) as (service, training):
        await whole_step(1, 60, 50)
        await whole_step(2, 128, 40, 33)
        before = await look(server_url) or {}
        for number, lengths in enumerate([(40,), (99, 34, 70, 128, 80), (33,) * 11]):
            await whole_step(3 + number, *lengths)
        counted = compile_metrics(before, await look(server_url) or {})
    assert counted["server/compiles"] == counted["server/compiles_cached"] == counted["server/compile_seconds"] == 0


PROBE = """
import json, sys
import repairs
repairs.apply("engine", repairs.NAMES)
from skyrl.backends import jax as backend
from skyrl.tinker import types
from repairs import engine_programs, engine_seats, engine_warm_up
from tests.support.engine_programs import pass_of

engine_warm_up.on_gpu, engine_warm_up.ON_GPU = lambda: True, 128
settings = {"max_lora_adapters": 3, "max_lora_rank": 8, "train_micro_batch_size": 8, "sample_max_num_sequences": 4}
engine = backend.JaxBackendImpl(sys.argv[1], backend.JaxBackendConfig(**settings, gradient_checkpointing=True), 0)
engine_programs.programs.wait(600)
made = engine_programs.programs.has(("training", 2, 32))
engine.create_model("m", types.LoraConfig(rank=8, alpha=16.0, seed=1))
programs = []
programs_of = engine_programs.programs
stock, programs_of._compiled = programs_of._compiled, lambda *of: programs.append(of[1]) or stock(*of)
result = engine.forward_backward(pass_of(types, 24, 20))["r"]
params = types.SamplingParams(temperature=1.0, max_tokens=4, seed=1, top_k=0, top_p=1.0)
programs_of._compiled = stock
row, seats, counts = engine_seats.Row("r", [5, 6, 7], params, ""), engine.seats, []
for coming in ({("advance", 4, row.room, *engine_seats.PLAIN): ("a wave", None)}, {}):
    programs_of._queue = coming
    seats.queue.append(row)
    seats._admit()
    counts.append(len(seats.rows))
    seats.reset()
print("RESULT", json.dumps([made, programs, result.metrics["loss:sum"], counts]))
"""


@pytest.mark.nightly
def test_on_a_gpu_the_pass_of_a_probe_is_compiled_before_it_is_asked_for(
    server_env: None, tiny_model_dir: Path
) -> None:
    """Here on a CPU, which is told that it is one."""
    made, compiled, loss, seats = results(tiny_model_dir, PROBE)
    assert made and compiled == [] and loss > 0
    assert seats == [4, 1], "one who samples takes all seats if their program is being compiled, else the fewest"
