"""Qwen3 in PyTorch, small and plain, for pretraining: parameters carry the names of the published checkpoints."""

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from scripts.quickstart.shape import Shape


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        width = shape.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.key_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.key_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)
        self.q_norm = nn.RMSNorm(self.size, eps=shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.size, eps=shape.rms_norm_eps)

    def forward(self, x_BTD: Tensor, sin_TH: Tensor, cos_TH: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.size))

        q = rotate(self.q_norm(split(self.q_proj(x_BTD))).transpose(1, 2), sin_TH, cos_TH)
        k = rotate(self.k_norm(split(self.k_proj(x_BTD))).transpose(1, 2), sin_TH, cos_TH)
        v = split(self.v_proj(x_BTD)).transpose(1, 2)
        repeats = self.heads // self.key_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), FeedForward(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def forward(self, x: Tensor, sin_TH: Tensor, cos_TH: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), sin_TH, cos_TH)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class Qwen3(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.model = shape, Trunk(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, ids_BT: Tensor, wanted_BT: Tensor) -> Tensor:
        """Logits [N, vocabulary] of the positions that `wanted_BT` (bool) marks."""
        x = self.model.embed_tokens(ids_BT)
        sin_TH, cos_TH = angles(ids_BT.shape[1], self.shape, x.device)
        for layer in self.model.layers:
            x = layer(x, sin_TH, cos_TH)
        return self.lm_head(self.model.norm(x[wanted_BT]))


def angles(length: int, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    half = torch.arange(shape.head_dim // 2, device=device) / (shape.head_dim // 2)
    turned = torch.arange(length, device=device)[:, None] / shape.rope_theta**half
    return turned.sin(), turned.cos()


def rotate(x: Tensor, sin_TH: Tensor, cos_TH: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos_TH - right * sin_TH, right * cos_TH + left * sin_TH], -1)
