"""The training states of a run on the server: their records, which ones to keep, and which one to resume from."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harbortrainer.durable.files import damaged, read_json
from harbortrainer.durable.jsonl import append_line, cut_torn_line, read_lines, rewrite
from harbortrainer.errors import UserError
from harbortrainer.run.directory import RunDirectory

SCORE = "eval/reward_mean"
EVALUATION = "evaluation after step "  # in references.jsonl: the weights that an open evaluation samples


@dataclass(frozen=True, slots=True)
class PolicyIdentity:
    """What a run trains; it can resume only from a state of the same identity."""

    model_name: str
    lora_rank: int
    renderer: str  # chat template of its conversations
    thinking: str  # the template's thinking switch

    def checkpoint(self, step: int, path: str) -> "Checkpoint":
        return Checkpoint(**asdict(self), step=step, path=path)


@dataclass(frozen=True, slots=True)
class Checkpoint(PolicyIdentity):
    """A training state of this policy with optimizer, saved after `step` batches had been trained on."""

    step: int
    path: str  # tinker://MODEL_ID/weights/NAME

    @property
    def model(self) -> str:
        """The server's name for the saved model."""
        return self.path.removeprefix("tinker://").split("/")[0]


BEST = 1  # states by their evaluation that are kept beside the newest


@dataclass(frozen=True, slots=True)
class Keep:
    """The states to keep: the `last` ones (0 = all), and the `best` by `metric`."""

    last: int
    best: int = 0
    metric: str = SCORE
    lower: bool = False  # a lower value is better

    def choose(self, steps: Sequence[int], scores: Mapping[int, float]) -> set[int]:
        """Return the steps to keep of `steps`, which are in order.

        `scores`: of the steps that were evaluated; more is better, and of equal scores the first step wins.
        """
        chosen = set(steps[-self.last :]) if self.last else set(steps)
        evaluated = sorted((step for step in steps if step in scores), key=lambda step: (-scores[step], step))
        return chosen | set(evaluated[: self.best])


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """Return the records of checkpoints.jsonl. Raises UserError when one is damaged."""
    try:
        return [Checkpoint(**record) for record in read_lines(path)]
    except TypeError:
        raise damaged(path, "a record has other fields than a checkpoint") from None


def find_checkpoint(field: str, value: str) -> tuple[RunDirectory, Checkpoint]:
    """Return the checkpoint of another run, which may be running. `value`: RUN_DIR (the newest one) or RUN_DIR@STEP.

    Raises UserError, which begins with `field` and `value`.
    """
    folder, step = value, ""
    if not Path(value).expanduser().is_dir() and re.search(r"@\d+$", value):
        folder, _, step = value.rpartition("@")
    run = RunDirectory(Path(folder).expanduser().resolve())
    if not run.config.is_file():
        raise UserError(
            f"{field}={value}: no run directory ({run.config} is missing); give RUN_DIR, RUN_DIR@STEP or a tinker:// "
            "path"
        )
    records = read_checkpoints(run.checkpoints)
    found = [record for record in records if not step or record.step == int(step)]
    if not found:
        steps = ", ".join(str(record.step) for record in records)
        raise UserError(
            f"{field}={value}: no such checkpoint; " + (f"there are {steps}" if steps else "none was saved")
        )
    return run, found[-1]


class CheckpointLog:
    """checkpoints.jsonl: a record is written when the server has the state, and removed before it is deleted there.

    models.jsonl: the models that this run has had on the server, to find leftovers of a killed process.
    references.jsonl: the samplers that it keeps there: of other states, to compare its policy with, and of open
    evaluations.
    """

    def __init__(self, path: Path, keep: Keep = Keep(0)) -> None:
        self._path = path
        self._models = path.with_name("models.jsonl")
        self._references = path.with_name("references.jsonl")
        self._keep = keep
        for file in (path, self._models, self._references):
            cut_torn_line(file)
        self.records = read_checkpoints(path)
        self._samplers = {record["state"]: record["sampler"] for record in read_lines(self._references)}

    def latest(self) -> Checkpoint | None:
        return self.records[-1] if self.records else None

    @property
    def paths(self) -> set[str]:
        """All weights on the server that this run may need again."""
        return {record.path for record in self.records} | {*self._samplers.values()}

    @property
    def samplers(self) -> dict[str, str]:
        """Paths of the saved samplers by what they are of: the path of a state, or EVALUATION and a step."""
        return dict(self._samplers)

    def sampler_of(self, state: str) -> str | None:
        """Return the path of the sampler that was saved of a state, None without one."""
        return self._samplers.get(state)

    def note_sampler(self, state: str, sampler: str) -> None:
        """Record the sampler of a state; the server has it."""
        append_line(self._references, {"state": state, "sampler": sampler})
        self._samplers[state] = sampler

    def drop_sampler(self, state: str) -> None:
        """Remove the sampler of a state from the records; call it before it is deleted."""
        self._samplers.pop(state, None)
        rewrite(self._references, [{"state": one, "sampler": path} for one, path in self._samplers.items()])

    async def add(
        self, checkpoint: Checkpoint, delete: Callable[[str], Awaitable[None]], undecided: Collection[int] = ()
    ) -> None:
        """Record a new state, then delete the states that `keep` leaves out. `undecided`: as `prune` has it."""
        self.records.append(checkpoint)  # written with what goes: a full disk leaves a state out, and no half of this
        await self.prune(delete, undecided)

    async def prune(self, delete: Callable[[str], Awaitable[None]], undecided: Collection[int] = ()) -> None:
        """Delete the states that `keep` leaves out. `undecided`: steps whose score is not known yet, which stay."""
        kept = self._keep.choose([record.step for record in self.records], self._scores())
        if self._keep.best:
            kept |= {*undecided}
        gone = [record for record in self.records if record.step not in kept]
        self.records = [record for record in self.records if record.step in kept]
        self._write()
        for record in gone:
            await delete(record.path)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove a state from the records."""
        self.records.remove(checkpoint)
        self._write()

    def _write(self) -> None:
        rewrite(self._path, [asdict(record) for record in self.records])

    def models(self) -> list[str]:
        """Return models of this run that may have weights on the server."""
        known = [record["model"] for record in read_lines(self._models)]
        return list(dict.fromkeys([*known, *(record.model for record in self.records)]))

    def note_model(self, model_id: str) -> None:
        """Call this before saving anything of the model."""
        if model_id not in self.models():
            append_line(self._models, {"model": model_id})

    def forget_models(self, gone: Collection[str]) -> None:
        """Forget models that have nothing left on the server."""
        rewrite(self._models, [{"model": model} for model in self.models() if model not in gone])

    def _scores(self) -> dict[int, float]:
        """How good each step is by `metric`; more is better."""
        rows, metric = read_lines(self._path.with_name("metrics.jsonl")) if self._keep.best else [], self._keep.metric
        sign = -1 if self._keep.lower else 1
        return {row["global_step"]: sign * row[metric] for row in rows if metric in row}


def check_identity(saved: PolicyIdentity, wanted: PolicyIdentity, given: str, fix: str) -> None:
    """Raises UserError when the state is of another policy than a run trains.

    `given`: the field and value that name the state; `fix`: what to do instead of setting the field as it was.
    """
    if saved.model_name != wanted.model_name:
        raise UserError(
            f"model_name={wanted.model_name}: {given} was trained from {saved.model_name}; give "
            f"model_name={saved.model_name} or {fix}"
        )
    if saved.lora_rank != wanted.lora_rank:
        raise UserError(
            f"lora_rank={wanted.lora_rank}: {given} has rank {saved.lora_rank}; give lora_rank={saved.lora_rank} or "
            f"{fix}"
        )
    if saved.thinking != wanted.thinking:
        raise UserError(
            f"enable_thinking: {given} was trained with thinking {saved.thinking}, and this run has {wanted.thinking}; "
            f"set it as there or {fix}"
        )
    if saved.renderer != wanted.renderer:
        raise UserError(
            f"model_name={wanted.model_name}: {given} was trained with another chat template ({saved.renderer}, now "
            f"{wanted.renderer}); put that one and its tool_format back or {fix}"
        )


def check_base(run: RunDirectory, given: str, about: Mapping[str, Any]) -> str:
    """Return the digest of the base weights that the run trains on, "" = not known.

    `about`: the server's report on itself. Raises UserError when it has other base weights.
    """
    before = read_json(run.effective).get("server", {}).get("base_weights", "") if run.effective.exists() else ""
    now = about.get("base_weights", "")
    if before and now and before != now:
        raise UserError(
            f"{given}: was trained on base weights {before}, the server has {now} under the same model name; start the "
            "server with the files of then"
        )
    return before or now
