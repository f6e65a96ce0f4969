"""vLLM's API server on a CPU, with a repair and a shorter start; server/sampler.py starts this file.

It runs under server/vllm/.venv. Upstream: vllm 0.32.0, vllm/lora/ops/torch_ops/lora_ops.py, bgmv_shrink;
vllm-project/vllm#48421. A token of the base model has the adapter's index -1, which selects the last adapter in memory:
a sample of the base model, batched with samples of adapters, is of that adapter's weights. On a GPU the index skips it.

torchvision, which vLLM's Qwen3.5 imports for images, is built for CUDA on the ordinary index: its operators do not load
beside torch for CPUs, and its import then misses two of them. They are declared here and never called; vLLM inspects a
model's class in this process for that.

vLLM spawns its engine, which imports everything once more (12 s). Here the engine is a fork, which has the repair too.
vLLM spawns because it binds threads to cores; server/sampler.py binds none.
"""

# pyright: reportMissingImports=false
import functools
import multiprocessing
import runpy
from typing import Any

import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from vllm.lora.ops import torch_ops  # noqa: E402
from vllm.lora.ops.torch_ops import lora_ops  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.utils import system_utils  # noqa: E402
from vllm.v1.engine import utils as engine_utils  # noqa: E402

stock_shrink = lora_ops.bgmv_shrink


def bgmv_shrink(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
    """A token without an adapter is 0 in the adapter's small space, so that bgmv_expand adds 0 to its output."""
    stock_shrink(inputs.masked_fill((indices < 0).unsqueeze(1), 0), weights, output, indices, scaling)


lora_ops.bgmv_shrink = torch_ops.bgmv_shrink = bgmv_shrink  # before anything imports the name
registry._run_in_subprocess = lambda inspect: inspect()
fork = functools.partial(multiprocessing.get_context, "fork")
system_utils.get_mp_context = engine_utils.get_mp_context = fork

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
