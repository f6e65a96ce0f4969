"""vLLM's API server on a CPU, with a repair and a shorter start; server/sampler.py starts this file.

It runs under server/vllm/.venv. Upstream: vllm 0.32.0, vllm/lora/ops/torch_ops/lora_ops.py, bgmv_shrink;
vllm-project/vllm#48421. A token of the base model has the adapter's index -1, which selects the last adapter in memory:
a sample of the base model, batched with samples of adapters, is of that adapter's weights. On a GPU the index skips it.

vLLM spawns its engine, which imports everything once more (12 s). Here the engine is a fork, which has the repair too.
vLLM spawns because it binds threads to cores; server/sampler.py binds none.
"""

# pyright: reportMissingImports=false
import functools
import multiprocessing
import runpy
from typing import Any

from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops
from vllm.utils import system_utils
from vllm.v1.engine import utils as engine_utils

stock_shrink = lora_ops.bgmv_shrink


def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """A token without an adapter is 0 in the adapter's small space, so that bgmv_expand adds 0 to its output."""
    stock_shrink(inputs.masked_fill((indices < 0).unsqueeze(1), 0), weights, output, indices, scaling)


lora_ops.bgmv_shrink = torch_ops.bgmv_shrink = bgmv_shrink  # before anything imports the name
fork = functools.partial(multiprocessing.get_context, "fork")
system_utils.get_mp_context = engine_utils.get_mp_context = fork

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
