"""vLLM's API server on a CPU, with one repair. server/sampler.py starts this file under server/vllm/.venv.

Upstream: vllm 0.32.0, vllm/lora/ops/torch_ops/lora_ops.py, bgmv_shrink; vllm-project/vllm#48421. A token of the base
model has the adapter's index -1, which selects the last adapter in memory: a sample of the base model, batched with
samples of adapters, is of that adapter's weights. On a GPU the index skips the token.
Processes that vLLM spawns import this file as their main module, and so have the repair too.
"""

# pyright: reportMissingImports=false
import runpy
from typing import Any

from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops

stock_shrink = lora_ops.bgmv_shrink


def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """A token without an adapter is 0 in the adapter's small space, so that bgmv_expand adds 0 to its output."""
    stock_shrink(inputs.masked_fill((indices < 0).unsqueeze(1), 0), weights, output, indices, scaling)


lora_ops.bgmv_shrink = torch_ops.bgmv_shrink = bgmv_shrink  # before anything imports the name

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
