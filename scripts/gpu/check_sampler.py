"""Whether vLLM's kernels run on this machine's GPU; unpack_sampler.sh calls it with vLLM's environment.

Normalisation (its own library) and FlashAttention 3 against torch; then all that vLLM's server imports. Exits with
1 and the reason, also for wrong numbers.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import importlib
import sys
import time

SERVED = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.llama",
    "vllm.lora.punica_wrapper.punica_gpu",
)
CLOSE = 0.02  # bfloat16 values of about 1


def norm_differs() -> float:
    import torch
    from vllm import _custom_ops as ops

    given = torch.randn(64, 2560, device="cuda", dtype=torch.bfloat16)
    weight, made = torch.ones(2560, device="cuda", dtype=torch.bfloat16), torch.empty_like(given)
    ops.rms_norm(made, given, weight, 1e-6)
    wanted = given.float() * torch.rsqrt(given.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return float((made.float() - wanted).abs().max() / wanted.abs().max())


def attention_differs() -> float:
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    length, heads = 256, 8
    q, k, v = (torch.randn(length, heads, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ends = torch.tensor([0, length], device="cuda", dtype=torch.int32)
    made = flash_attn_varlen_func(q, k, v, length, ends, length, cu_seqlens_k=ends, causal=True, fa_version=3)
    parts = (part.float().transpose(0, 1) for part in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1)
    return float((made.float() - wanted).abs().max() / wanted.abs().max())


def main() -> None:
    began = time.monotonic()
    import torch
    import vllm

    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    for name, differs in (("rms_norm", norm_differs), ("FlashAttention 3", attention_differs)):
        difference = differs()
        print(f"{name}: differs from torch by {difference:.1e} of the largest value", flush=True)
        if not difference <= CLOSE:
            sys.exit(f"{name}: wrong numbers")
    for module in SERVED:
        importlib.import_module(module)
    where = f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"
    print(f"vllm {vllm.__version__} on {where}, imported after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
