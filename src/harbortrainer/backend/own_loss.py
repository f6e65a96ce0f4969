"""A loss that a user brings: what it gets, and its call by the SDK, which differentiates it with torch."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.plugins import Brought

Tensor = Any  # torch.Tensor, an extra that this package's own environment lacks


@dataclass(frozen=True, slots=True, eq=False)
class LossSequence:
    """One sequence of N tokens of a minibatch, as torch tensors on the CPU.

    `group`: equal for the trials of one group. `logprobs_T`: float32, of the weights in training, to be differentiated;
    `sampled_logprobs_T`: of the weights that sampled. `action_T`: bool, what the policy sampled; `observation_T`: bool,
    what came between and after its answers. The first token has logprob 0; all else is 0 where nothing was sampled.
    """

    trial_name: str
    group: str
    logprobs_T: Tensor
    sampled_logprobs_T: Tensor
    advantages_T: Tensor
    action_T: Tensor
    observation_T: Tensor


class OwnLoss:
    """One minibatch's call of the function: list[LossSequence] -> (loss to minimise, metrics by name).

    `error`: what the function raised, or is refused for; `metrics`: its own, as `loss/NAME`.
    """

    def __init__(self, brought: Brought, sequences_D: Sequence[TrainingSequence]) -> None:
        self._brought, self.sequences_D = brought, sequences_D
        self.error: BaseException | None = None
        self.metrics: dict[str, float] = {}

    def __call__(self, _: object, logprobs_D: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Compute loss and metrics from N-1 logprobs a sequence, as the SDK asks for them."""
        try:
            given = [_tensors(*pair) for pair in zip(self.sequences_D, logprobs_D, strict=True)]
            return self._checked(self._brought.value(given), logprobs_D), {}
        except BaseException as error:
            self.error = error
            raise

    def _checked(self, answer: Any, logprobs_D: Sequence[Tensor]) -> Tensor:
        """The loss, in which every sequence has a gradient. Raises UserError."""
        torch = importlib.import_module("torch")
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise self._wrong(f"{type(answer).__name__}")
        loss, metrics = answer
        one = isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad
        if not one or not torch.isfinite(loss).all():
            raise self._wrong(f"{loss!r} as loss")
        for name, value in metrics.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise self._wrong(f"{value!r} as metric {name}")
        self.metrics = {f"loss/{name}": float(value) for name, value in metrics.items()}
        for logprobs in logprobs_D:
            logprobs.register_hook(self._check_gradient)
        return loss.sum() + sum(0.0 * logprobs.sum() for logprobs in logprobs_D)

    def _check_gradient(self, gradient: Tensor) -> None:
        if not bool(gradient.isfinite().all()):
            self.error = self._wrong("a loss whose gradient is not finite")
            raise self.error

    def _wrong(self, what: str) -> UserError:
        return UserError(
            f"{self._brought.given}: returned {what} for {len(self.sequences_D)} sequences; return (loss, metrics): a "
            "tensor of one finite number made of logprobs_T, and a dict of finite numbers"
        )


def _tensors(sequence: TrainingSequence, logprobs: Tensor) -> LossSequence:
    torch = importlib.import_module("torch")
    action_T = torch.tensor(sequence.mask_T)
    return LossSequence(
        sequence.trial_name,
        TrialName.parse(sequence.trial_name).group_name,
        torch.cat([torch.zeros(1), logprobs]),
        torch.tensor(sequence.logprobs_T),
        advantages_T=torch.tensor(sequence.advantages_T),
        action_T=action_T,
        observation_T=~action_T & (action_T.cumsum(0) > 0),
    )
