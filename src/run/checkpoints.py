"""Which training states of this run lie on the server, and which of them to keep."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from src.errors import UserError
from src.run.jsonl import append_line, cut_torn_line, read_lines, rewrite


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training state with optimizer, saved after `step` batches had been trained on."""

    step: int
    path: str  # tinker://MODEL_ID/weights/NAME
    model_name: str
    lora_rank: int
    renderer: str  # how its conversations were rendered: chat template,
    thinking: str  # and its thinking switch


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run trains; a state of anything else cannot go on in it."""

    model_name: str
    lora_rank: int
    renderer: str
    thinking: str

    def checkpoint(self, step: int, path: str) -> Checkpoint:
        return Checkpoint(step, path, self.model_name, self.lora_rank, self.renderer, self.thinking)


class CheckpointLog:
    """checkpoints.jsonl: a record is written when the server has the state, and removed before it is deleted there."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._keep = keep
        cut_torn_line(path)
        self.records = [Checkpoint(**record) for record in read_lines(path)]

    def latest(self) -> Checkpoint | None:
        return self.records[-1] if self.records else None

    async def add(self, checkpoint: Checkpoint, delete: Callable[[str], Awaitable[None]]) -> None:
        """Record a new state, then delete what `keep` no longer covers (0 = keep all)."""
        append_line(self._path, asdict(checkpoint))
        self.records.append(checkpoint)
        while self._keep and len(self.records) > self._keep:
            old = self.records.pop(0)
            rewrite(self._path, [asdict(record) for record in self.records])
            await delete(old.path)


def require_checkpoint(log: CheckpointLog, wanted: Policy, run: str) -> Checkpoint:
    """The state to resume from. Raises UserError when there is none, or one of another model or renderer."""
    checkpoint = log.latest()
    if checkpoint is None:
        raise UserError(f"resume={run}: no checkpoint was saved there (save_every); start a new run instead")
    if checkpoint.model_name != wanted.model_name:
        raise UserError(
            f"model_name={wanted.model_name}: resume={run} was trained from {checkpoint.model_name}; "
            f"give model_name={checkpoint.model_name} or start a new run"
        )
    if checkpoint.thinking != wanted.thinking:
        raise UserError(
            f"enable_thinking: resume={run} was trained with thinking {checkpoint.thinking}, now it is "
            f"{wanted.thinking}; leave the field as it was or start a new run"
        )
    if checkpoint.renderer != wanted.renderer:
        raise UserError(
            f"model_name={wanted.model_name}: its chat template has changed since resume={run} was started "
            f"({checkpoint.renderer}, now {wanted.renderer}); put the old one back or start a new run"
        )
    return checkpoint
