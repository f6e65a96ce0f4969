"""A repair of vLLM on a GPU, which each of its workers imports (--worker-extension-cls, set by server/sampler.py).

It runs under server/vllm/.venv. Upstream: vllm 0.24.0, vllm/lora/lora_model.py from_lora_tensors and
vllm/lora/model_manager.py _create_merged_loras_inplace. vLLM copies each tensor of an adapter into pinned memory, so
that its copy to the GPU can be asynchronous. The driver allocates that memory tensor by tensor, 504 times for a model
of 4 B parameters, while nothing is sampled. Here the copy is made from ordinary memory, which takes less time.

It also makes a worker wait until the trainer, where they share a GPU, has taken its memory: vLLM is loaded by then.
"""

# pyright: reportMissingImports=false
import os
import time

from vllm.lora import lora_model, model_manager

AFTER = os.environ.get("SKYRL_TX_VLLM_AFTER", "")  # a file; a worker is imported before it measures the GPU's memory
while AFTER and not os.path.exists(AFTER):
    time.sleep(0.2)

lora_model.PIN_MEMORY = model_manager.PIN_MEMORY = False


class Unpinned:
    """A name for vLLM to import; it adds nothing to a worker."""
