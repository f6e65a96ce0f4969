"""A repair of vLLM on a GPU, which each of its workers imports (--worker-extension-cls, set by server/sampler.py).

It runs under server/vllm/.venv. Upstream: vllm 0.24.0, vllm/lora/lora_model.py from_lora_tensors and
vllm/lora/model_manager.py _create_merged_loras_inplace. vLLM copies each tensor of an adapter into pinned memory, so
that its copy to the GPU can be asynchronous. The driver allocates that memory tensor by tensor, 504 times for a model
of 4 B parameters, while nothing is sampled. Here the copy is made from ordinary memory, which takes less time.

It also makes a worker wait until the trainer, where they share a GPU, has taken its memory: vLLM is loaded by then.

vllm/model_executor/layers/logits_processor.py, LogitsProcessor._get_logits rounds logits to the model's dtype, and the
sampler computes with them in float32: 0.03 nats on average in bfloat16. Here the product, which adds up in float32
anyway, is not rounded, as in the trainer (repairs/engine_logprobs.py).
"""

# pyright: reportMissingImports=false
import os
import time
from typing import Any

import torch
from vllm.lora import lora_model, model_manager
from vllm.model_executor.layers.logits_processor import LogitsProcessor

AFTER = os.environ.get("SKYRL_TX_VLLM_AFTER", "")  # a file; a worker is imported before it measures the GPU's memory
while AFTER and not os.path.exists(AFTER):
    time.sleep(0.2)

lora_model.PIN_MEMORY = model_manager.PIN_MEMORY = False

stock_logits = LogitsProcessor._get_logits


def exact_logits(self: Any, hidden_states: Any, lm_head: Any, embedding_bias: Any) -> Any:
    """Wraps LogitsProcessor._get_logits, of one GPU and bfloat16 weights that are not quantized. (N, H) -> (N, V)."""
    weight, other = getattr(lm_head, "weight", None), getattr(lm_head, "tp_size", 1) > 1 or embedding_bias is not None
    if weight is None or other or not weight.dtype == hidden_states.dtype == torch.bfloat16:
        return stock_logits(self, hidden_states, lm_head, embedding_bias)
    logits = torch.mm(hidden_states, weight.t(), out_dtype=torch.float32)
    return logits[..., : self.org_vocab_size]


LogitsProcessor._get_logits = exact_logits


class Unpinned:
    """A name for vLLM to import; it adds nothing to a worker."""
