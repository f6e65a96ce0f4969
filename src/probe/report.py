"""What a probe found: typed facts for the trainer, rows for people, both the same as JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["same", "differs", "unusable", "unclear", "not measured", "info"]
Reduction = Literal["sum", "example_mean", "unknown"]
PromptLogprobs = Literal["leading_none", "short", "refused"]
FORMAT = 2  # of the JSON; a report of another format is measured again


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `verdict`: against Tinker's meaning; `note`: what follows from it."""

    group: str
    what: str
    value: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the trainer must know. None = not measured, or measured and unclear."""

    losses: dict[str, tuple[str, ...]] = field(default_factory=dict)  # accepted losses -> settings with an effect
    # learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm: whether it reaches the optimizer
    adam: dict[str, bool | None] = field(default_factory=dict)
    reduction: Reduction = "unknown"
    weights_with_policy_losses: bool = False  # an input `weights` is taken with importance_sampling, ppo, cispo
    decays_other_adapters: bool | None = None
    prompt_logprobs: PromptLogprobs = "refused"
    frozen_samplers: bool | None = None  # a sampling client keeps the weights that it was made of
    sampling_keeps_training: bool | None = None  # sampling never changes the weights in training
    refuses_foreign_ids: bool | None = None  # token ids beyond the vocabulary
    ttl: bool | None = None  # time-to-live of a checkpoint is kept
    can_sample: bool = False
    context_limit: int | None = None  # tokens
    max_rank: int | None = None
    optimizer_state_restored: bool | None = None


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server and base model, measured at one time."""

    url: str
    model_name: str
    fingerprint: str  # of the server: another one may behave differently
    measured_at: str  # ISO 8601, UTC
    facts: Facts
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ServerReport":
        """Raises ValueError for anything that to_json of this version did not write."""
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("format") != FORMAT:
                raise ValueError("a report of another format")
            facts: dict[str, Any] = values.pop("facts")
            losses = {name: tuple(settings) for name, settings in facts.pop("losses").items()}
            rows = tuple(Row(**row) for row in values.pop("rows"))
            return cls(facts=Facts(losses=losses, **facts), rows=rows, **values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a report: {error!r}") from None
