"""Who samples where SAMPLER is not set, and how trainer and vLLM share a GPU: by what each of them holds there.

On an H100 (80 GB) Qwen3-4B's shape, rank 32, took 45.1 GiB to train one datum of 131,072 tokens, 22.5 of which may wait
in the host's memory, and vLLM 26.65 GiB for 194,064 tokens of keys and values (bench/RESULTS.md).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from repairs.machine import GIB

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
ALONE, BOTH = 0.92, 0.9  # of a GPU, for the trainer or for both; CUDA, cuDNN and cuBLAS take the rest
LOADING = 2.5  # copies of the weights while the trainer loads them
STATES = 26  # of a token in a layer's pass, in hidden states, beside the one that each layer keeps
ADAM = 4  # as in repairs/engine_memory
USED = 0.9  # of what is free, for a pass
GRAPHS = 3 * GIB  # vLLM's programs, activations and adapters


class Need(NamedTuple):
    """Bytes: the least of trainer and vLLM for one sequence of the whole context; what more vLLM has a use for."""

    loading: float  # of the model by the trainer
    trainer: float
    vllm: float
    more: float


def need(config: Mapping[str, Any], weights: int, context: int, settings: Mapping[str, Any], host: float) -> Need:
    """`config`: config.json; `weights`: bytes; `settings`: of the JAX backend; `host`: as of host_bytes.

    What layers are given waits in the host's memory where that has room for it (repairs/engine_blocks). Weights and
    adapters are spread over the GPUs of tensor parallelism, passes are counted as if they were not.
    """
    spread = settings.get("tensor_parallel_size", 1)
    item = 4 if (config.get("dtype") or config.get("torch_dtype") or "float32") == "float32" else 2
    layers, hidden, heads = (config[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    size = config.get("head_dim") or hidden // heads
    kv_heads, slots = config.get("num_key_value_heads") or heads, settings.get("max_lora_adapters", 32)
    sides = 2 * (hidden + heads * size) + 2 * (hidden + kv_heads * size) + 3 * (hidden + config["intermediate_size"])
    adapters = 4 * sides * layers * settings.get("max_lora_rank", 32) * (slots + ADAM * (slots - 1))
    kept = layers if context * hidden * item * layers > host else 0
    one_pass = context * hidden * item * (kept + STATES) / USED
    sequence = context * 2 * layers * kv_heads * size * item
    seats = settings.get("sample_max_num_sequences", 0) or 1
    loading = LOADING * weights / spread
    return Need(
        loading, max(loading, (weights + adapters) / spread + one_pass), weights + GRAPHS + sequence, seats * sequence
    )


def shares(total: int, needed: Need, trainer: float = 0.0, vllm: float = 0.0) -> tuple[float, float]:
    """Of a GPU of `total` bytes, for trainer and vLLM; `trainer` or `vllm` is given, or 0.

    Half of what is left over goes to vLLM, where it has a use for it. Where both do not fit, the trainer has less.
    """
    spare = BOTH * total - (trainer * total or needed.trainer) - needed.vllm
    extra = min(max(spare, 0.0) / (1 if trainer else 2), needed.more)
    vllm = vllm or (needed.vllm + extra) / max(total, 1)
    return trainer or max(BOTH - vllm, 0.0), vllm


def settle(args: argparse.Namespace, total: int, needed: Need, context: int) -> str:
    """Makes "auto" one of the samplers, and sets the shares of a GPU of `total` bytes. Returns a line for people.

    Exits with one where the trainer cannot load the model beside vLLM, or `total` is 0: unknown.
    """
    if not total and args.sampler == "vllm":
        sys.exit(f"SAMPLER=vllm: nvidia-smi does not tell the GPU's memory; set VLLM_MEM and {FRACTION}")
    trainer, vllm = shares(total, needed, float(os.environ.get(FRACTION) or 0), args.vllm_mem)
    line = f"of the GPU's {total / GIB:.1f} GiB vLLM needs {needed.vllm / GIB:.1f} for {context} tokens, the trainer "
    line += f"{needed.trainer / GIB:.1f}"
    if args.sampler == "auto" and needed.trainer + needed.vllm > BOTH * total:
        args.sampler = "jax"
        leave_to_trainer()
        return f"sampler: jax; {line}, more than there is; a lower SKYRL_TX_CONTEXT_LIMIT makes room"
    if trainer * total < needed.loading:
        sys.exit(f"SAMPLER=vllm: {line}, more than there is; set a lower SKYRL_TX_CONTEXT_LIMIT, or SAMPLER=jax")
    args.sampler, args.vllm_mem = "vllm", round(vllm, 3)
    os.environ[FRACTION] = f"{trainer:.3f}"
    return f"sampler: vLLM with {vllm:.3f} of the GPU's memory, the trainer with {trainer:.3f}; {line}"


def leave_to_trainer() -> None:
    os.environ[FRACTION] = os.environ.get(FRACTION) or str(ALONE)


def memory_of(gpu: str) -> int:
    """Bytes; 0 where nvidia-smi does not tell. `gpu`: its number or name."""
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return int(said) << 20 if said.isdecimal() else 0
