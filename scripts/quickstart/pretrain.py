"""Pretrains models/quickstart on transcripts. By hand, in an environment with PyTorch; nobody else needs that.

python -m scripts.quickstart.pretrain MODEL_DIRECTORY STEPS BATCH_TOKENS TRANSCRIPTS.npz...
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file, save_file
from torch import Tensor  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from scripts.quickstart.muon import Muon
from scripts.quickstart.qwen3 import Qwen3
from scripts.quickstart.shape import read_shape

ADAM_RATE, MUON_RATE = 3e-3, 0.02
WARMUP, DECAY_FROM = 100, 0.4  # steps; share of the run
# Loss of context, observation, answer, later syllables of an answer's names. Echoed commands are practice in copying.
ROLE_WEIGHTS = (0.0, 0.3, 1.0, 1.0)
ROLES = {"observations": 1, "answers": 2, "names": 3}
VALIDATION = 2000  # episodes
MULTIPLE = 8  # lengths are padded to it


class Transcripts:
    def __init__(self, files: Sequence[str], seed: int) -> None:
        loaded = [np.load(file) for file in files]
        self._ids = np.concatenate([part["ids"] for part in loaded])
        self._roles = np.concatenate([part["roles"] for part in loaded])
        self._lengths = np.concatenate([part["lengths"] for part in loaded]).astype(np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._rng = np.random.default_rng(seed)
        shuffled = self._rng.permutation(len(self._lengths))
        self.validation, training = shuffled[:VALIDATION], shuffled[VALIDATION:]
        self._by_length = training[np.argsort(self._lengths[training], kind="stable")]

    def batches(self, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless batches of episodes of about equal length."""
        while True:
            middle = int(self._rng.integers(len(self._by_length)))
            count = max(4, tokens // int(self._lengths[self._by_length[middle]]))
            first = min(max(0, middle - count // 2), max(0, len(self._by_length) - count))
            yield self.padded(self._by_length[first : first + count])

    def padded(self, episodes: np.ndarray) -> tuple[Tensor, Tensor]:
        """Ids and roles, [episodes, longest]; role 0 beyond an episode's end."""
        longest = -(-int(self._lengths[episodes].max()) // MULTIPLE) * MULTIPLE
        columns = np.arange(longest)
        inside = columns < self._lengths[episodes][:, None]
        places = np.where(inside, self._starts[episodes][:, None] + columns, 0)
        ids, roles = np.where(inside, self._ids[places], 0), np.where(inside, self._roles[places], 0)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(roles.astype(np.int64))


def losses(model: Qwen3, ids_BT: Tensor, roles_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy in nats of each trained token, and its role."""
    device = model.lm_head.weight.device
    ids_BT, roles_BT = ids_BT.to(device), roles_BT.to(device)
    wanted = roles_BT[:, 1:] > 0
    logits = model(ids_BT[:, :-1], wanted)
    return F.cross_entropy(logits, ids_BT[:, 1:][wanted], reduction="none"), roles_BT[:, 1:][wanted]


def optimizers(model: Qwen3) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
    others = [p for name, p in model.named_parameters() if not (".layers." in name and p.ndim == 2)]
    return [Muon(matrices, MUON_RATE), torch.optim.AdamW(others, ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)]


def rate(step: int, steps: int) -> float:
    """Share of the full learning rate: warm-up, plateau, straight down to 0."""
    return min(1.0, (step + 1) / WARMUP, (1 - step / steps) / (1 - DECAY_FROM))


def train(model: Qwen3, transcripts: Transcripts, steps: int, batch_tokens: int) -> None:
    weights = torch.tensor(ROLE_WEIGHTS, device=model.lm_head.weight.device)
    parts, began = optimizers(model), time.monotonic()
    for step, (ids_BT, roles_BT) in zip(range(steps), transcripts.batches(batch_tokens), strict=False):
        loss_N, roles_N = losses(model, ids_BT, roles_BT)
        weight_N = weights[roles_N]
        ((loss_N * weight_N).sum() / weight_N.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, full in zip(parts, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step}: {time.monotonic() - began:.0f} s, {validate(model, transcripts)}", flush=True)


@torch.no_grad()
def validate(model: Qwen3, transcripts: Transcripts) -> str:
    """Mean loss by role on unseen episodes. Only that of names can reach 0: the rest holds choices made by chance."""
    parts = [losses(model, *transcripts.padded(part)) for part in np.array_split(transcripts.validation, 8)]
    loss_N, roles_N = torch.cat([loss for loss, _ in parts]), torch.cat([roles for _, roles in parts])
    return ", ".join(f"{name} {float(loss_N[roles_N == role].mean()):.4f}" for name, role in ROLES.items())


def main(directory: Path, steps: int, batch_tokens: int, files: Sequence[str]) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Qwen3(read_shape(directory))
    model.load_state_dict(load_file(directory / "model.safetensors"))
    model.to(device)
    train(model, Transcripts(files, seed=0), steps, batch_tokens)
    weights = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
