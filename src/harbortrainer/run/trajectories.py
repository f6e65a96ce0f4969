"""One compact file a trajectory: token ids, logprobs, reward, outcome, times. Written when the trial ends."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.durable.files import make_folder, replacing
from harbortrainer.errors import UserError
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, batch_name

FORMAT = 1
# What reading a damaged archive may raise: its checksums, its structure, its compressed streams, our own checks.
DAMAGE = (
    OSError, EOFError, KeyError, ValueError, TypeError, IndexError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
TURN = np.dtype(
    [
        ("new", np.int32),  # tokens of the turn that were not sampled
        ("sampled", np.int32),
        ("segment", np.int32),
        ("weights_version", np.int32),
        ("truncated", np.bool_),
        ("seconds", np.float32),
    ]
)


def write_trajectory(folder: Path, trajectory: Trajectory) -> Path:
    """Write `<trial_name>.npz`, whole or not at all, and fsynced: it survives a crash of the machine too.

    Raises DiskFault.
    tokens_T: each turn's new and sampled ids in order; logprobs_T: of the sampled ones; turns: a row each; meta: JSON.
    """
    make_folder(folder)
    turns = trajectory.turns
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps(_meta(trajectory))),
        "tokens_T": np.array([t for turn in turns for t in (*turn.new_tokens_T, *turn.completion_tokens_T)], np.int32),
        "logprobs_T": np.array([value for turn in turns for value in turn.logprobs_T], np.float32),
        "turns": np.array([_row(turn) for turn in turns], TURN),
    }
    path = folder / f"{trajectory.trial_name}.npz"
    archive = io.BytesIO()
    np.savez_compressed(archive, **arrays)
    with replacing(path) as file:
        file.write(archive.getvalue())
    return path


def read_trajectory(path: Path) -> Trajectory:
    """The trajectory as it was written (logprobs as float32). Raises UserError when the file is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"{damaged} does not match its checksum")
        with np.load(path, allow_pickle=False) as arrays:
            trajectory = _trajectory({name: arrays[name] for name in arrays.files})
        if trajectory.trial_name != path.stem:
            raise ValueError(f"it is that of {trajectory.trial_name}")
    except DAMAGE as error:
        raise UserError(f"{path}: damaged trajectory file ({error}); delete it and its trial runs again") from None
    return trajectory


def read_batch(folder: Path) -> dict[str, Trajectory]:
    """Finished trials of one batch by trial name; empty when there are none."""
    return {path.stem: read_trajectory(path) for path in sorted(folder.glob("*.npz"))}


def _meta(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "task_name": trajectory.task_name,
        "trial_name": trajectory.trial_name,
        "reward": trajectory.reward,
        "outcome": trajectory.outcome.value,
        "detail": trajectory.detail,
        "attempt": trajectory.attempt,
        "times": trajectory.times,
        "stats": trajectory.stats,
        "trial_dir": trajectory.trial_dir,
        "texts": [turn.text for turn in trajectory.turns],
    }


def _row(turn: Turn) -> tuple[Any, ...]:
    lengths = (len(turn.new_tokens_T), len(turn.completion_tokens_T))
    return (*lengths, turn.segment, turn.weights_version, turn.truncated, turn.seconds)


def _trajectory(arrays: dict[str, np.ndarray]) -> Trajectory:
    meta = json.loads(str(arrays["meta"]))
    if meta["format"] != FORMAT:
        raise ValueError(f"format {meta['format']}, this program reads {FORMAT}")
    tokens, logprobs = arrays["tokens_T"].tolist(), arrays["logprobs_T"].tolist()
    turns: list[Turn] = []
    token = logprob = 0
    for row, text in zip(arrays["turns"], meta["texts"], strict=True):
        middle, end = token + int(row["new"]), token + int(row["new"]) + int(row["sampled"])
        turns.append(
            Turn(
                segment=int(row["segment"]),
                new_tokens_T=tuple(tokens[token:middle]),
                completion_tokens_T=tuple(tokens[middle:end]),
                logprobs_T=tuple(logprobs[logprob : logprob + end - middle]),
                weights_version=int(row["weights_version"]),
                truncated=bool(row["truncated"]),
                seconds=float(row["seconds"]),
                text=text,
            )
        )
        token, logprob = end, logprob + end - middle
    return Trajectory(
        task_name=meta["task_name"],
        trial_name=meta["trial_name"],
        turns=tuple(turns),
        reward=meta["reward"],
        outcome=Outcome(meta["outcome"]),
        detail=meta["detail"],
        attempt=meta["attempt"],
        times=meta["times"],
        stats=meta["stats"],
        trial_dir=meta["trial_dir"],
    )


FOLDER = "log_ratios"


def log_ratios(sequences_D: Sequence[TrainingSequence], trained_D: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """log p(trainer) - log p(sampler) in nats of each trial's sampled tokens, segment after segment, as float16.

    `trained_D`: the trainer's logprobs, N a sequence. Those are of the weights before the optimizer step that the
    sequence was in: of a batch's first step, those that sampled it.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for sequence, trained in zip(sequences_D, trained_D, strict=True):
        parts.setdefault(sequence.trial_name, []).append((trained - sequence.logprobs_T)[sequence.mask_T])
    return {name: np.concatenate(segments).astype(np.float16) for name, segments in parts.items()}


def write_log_ratios(run: Path, step: int, ratios: Mapping[str, np.ndarray]) -> None:
    """Of one batch, by trial name; two bytes a sampled token at most. Blocks. Raises DiskFault."""
    if not ratios:
        return
    make_folder(run / FOLDER)
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **ratios)
    with replacing(run / FOLDER / f"{batch_name('step', step)}.npz") as file:
        file.write(archive.getvalue())


def read_log_ratios(run: Path, batch: str, trial: str) -> np.ndarray | None:
    """Of one trial of the batch `step_000003`; None where none are kept or they are damaged."""
    try:
        with (run / FOLDER / f"{batch}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays[trial].astype(np.float32)
    except DAMAGE:
        return None
