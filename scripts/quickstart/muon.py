"""Muon for the matrices of the layers: momentum, orthogonalised. It learns copying in half of Adam's steps."""

from collections.abc import Iterable

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]

MOMENTUM, WEIGHT_DECAY = 0.95, 0.01


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.mul_(MOMENTUM).add_(matrix.grad)
                direction = orthogonal(matrix.grad + MOMENTUM * momentum)
                rows, columns = matrix.shape
                matrix.mul_(1 - WEIGHT_DECAY * group["lr"])
                matrix.add_(direction, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly the closest matrix with singular values of 1: five Newton-Schulz steps."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x
