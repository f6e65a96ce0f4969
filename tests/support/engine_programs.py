"""Programs that run an engine without API in the server's environment, and batches for them."""

import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

CACHED = {"OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot be forked
CACHED |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ".state/jax-cache", "PYTHONPATH": "."}
CACHED |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
# to compile takes half the time; what is computed is compared with what the same compiler made of other programs
CACHED |= {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}


@cache
def forks() -> subprocess.Popen[str]:
    """What runs the programs: skyrl is imported once. It ends with this process."""
    command = ["server/.venv/bin/python", "-m", "tests.support.engine_forks"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | CACHED)


def printed(code: str, *arguments: str | Path) -> list[str]:
    """Lines that `code` prints in the server's environment."""
    process = forks()
    assert process.stdin is not None and process.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output:
        process.stdin.write(json.dumps([code, list(map(str, arguments)), output.name]) + "\n")
        process.stdin.flush()
        status, text = process.stdout.readline(), output.read()
    assert status == "0\n", text
    return text.splitlines()


def results(model: Path, code: str) -> Any:
    """What `code` prints as JSON after the word RESULT. Its argument is the model."""
    return next(json.loads(line.removeprefix("RESULT ")) for line in printed(code, model) if line.startswith("RESULT "))


def ids_of(lengths: tuple[int, ...]) -> list[list[int]]:
    return [[(11 * row + 3 * i) % 250 for i in range(length)] for row, length in enumerate(lengths)]


def inputs_of(types: Any, lengths: tuple[int, ...]) -> list[Any]:
    return [types.ModelInput(chunks=[types.EncodedTextChunk(tokens=one)]) for one in ids_of(lengths)]


def pass_of(types: Any, *lengths: int, loss: str = "cross_entropy") -> Any:
    """A batch of one request "r" of model "m", a datum for each length. `types`: skyrl.tinker.types."""
    rows = {"all_model_ids": ["m"], "all_loss_fns": [loss], "all_loss_fn_configs": [None]}
    lists: dict[str, list[Any]] = {name: value * len(lengths) for name, value in rows.items()}
    lists |= {f"all_{name}": [[] for _ in lengths] for name in ("values", "returns", "rollout_logprobs")}
    lists |= {"all_targets": [[*one[1:], 7] for one in ids_of(lengths)], "all_model_inputs": inputs_of(types, lengths)}
    lists |= {"all_token_weights": [[0.5] * n for n in lengths], "all_advantages": [[0.1] * n for n in lengths]}
    lists |= {"all_sampling_logprobs": [[-5.0] * n for n in lengths]}
    return types.PreparedModelPassBatch(**lists, request_batch_slices=[("r", "m", 0, len(lengths))])


def sample_of(types: Any, *lengths: int, new: int = 1, scored: bool = False) -> Any:
    """A batch of one request "r" of the base model, a sample for each length."""
    params = [types.SamplingParams(temperature=1.0, max_tokens=new, seed=row) for row, _ in enumerate(lengths)]
    none = [""] * len(lengths)
    return types.PreparedSampleBatch(
        all_model_inputs=inputs_of(types, lengths), all_sampling_params=params, all_model_ids=none,
        all_checkpoint_ids=none, all_checkpoint_paths=none, all_session_ids=[None] * len(lengths),
        needs_prompt_logprobs=scored, request_batch_slices=[("r", "", 0, len(lengths), scored, 0)],
    )  # fmt: skip
