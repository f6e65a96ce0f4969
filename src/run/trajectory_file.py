"""One compact file a trajectory: token ids, logprobs, advantage, outcome, times. Written when the trial ends."""

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from src.errors import UserError
from src.learning.trajectory import Outcome, Trajectory, Turn

FORMAT = 1


def write_trajectory(folder: Path, trajectory: Trajectory, advantage: float | None = None) -> Path:
    """Write `<trial_name>.npz` durably: arrays over tokens and turns, and a JSON text with the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    turns = trajectory.turns
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps(_meta(trajectory, advantage))),
        "new_tokens_T": _concatenate([turn.new_tokens_T for turn in turns], np.int32),
        "completion_tokens_T": _concatenate([turn.completion_tokens_T for turn in turns], np.int32),
        "logprobs_T": _concatenate([turn.logprobs_T for turn in turns], np.float32),
        "new_lengths": np.array([len(turn.new_tokens_T) for turn in turns], np.int32),
        "completion_lengths": np.array([len(turn.completion_tokens_T) for turn in turns], np.int32),
        "segments": np.array([turn.segment for turn in turns], np.int32),
        "weights_versions": np.array([turn.weights_version for turn in turns], np.int32),
        "truncated": np.array([turn.truncated for turn in turns], np.bool_),
        "seconds": np.array([turn.seconds for turn in turns], np.float32),
    }
    path = folder / f"{trajectory.trial_name}.npz"
    temporary = folder / f".{trajectory.trial_name}.tmp"
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


def read_trajectory(path: Path) -> Trajectory:
    """The trajectory as it was written (logprobs as float32). Raises UserError when the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _trajectory({name: arrays[name] for name in arrays.files})
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged trajectory file ({error}); delete it and its trial runs again") from None


def read_batch(folder: Path) -> dict[str, Trajectory]:
    """Finished trials of one batch by trial name; empty when there are none."""
    return {path.stem: read_trajectory(path) for path in sorted(folder.glob("*.npz"))}


def _meta(trajectory: Trajectory, advantage: float | None) -> dict[str, Any]:
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
        "advantage": advantage,
    }


def _trajectory(arrays: dict[str, np.ndarray]) -> Trajectory:
    meta = json.loads(str(arrays["meta"]))
    new = _split(arrays["new_tokens_T"], arrays["new_lengths"])
    completions = _split(arrays["completion_tokens_T"], arrays["completion_lengths"])
    logprobs = _split(arrays["logprobs_T"], arrays["completion_lengths"])
    turns = tuple(
        Turn(
            segment=int(arrays["segments"][i]),
            new_tokens_T=tuple(new[i]),
            completion_tokens_T=tuple(completions[i]),
            logprobs_T=tuple(logprobs[i]),
            weights_version=int(arrays["weights_versions"][i]),
            truncated=bool(arrays["truncated"][i]),
            seconds=float(arrays["seconds"][i]),
            text=meta["texts"][i],
        )
        for i in range(len(new))
    )
    return Trajectory(
        task_name=meta["task_name"],
        trial_name=meta["trial_name"],
        turns=turns,
        reward=meta["reward"],
        outcome=Outcome(meta["outcome"]),
        detail=meta["detail"],
        attempt=meta["attempt"],
        times=meta["times"],
        stats=meta["stats"],
        trial_dir=meta["trial_dir"],
    )


def _concatenate(parts: Sequence[Sequence[float]], dtype: type) -> np.ndarray:
    return np.array([value for part in parts for value in part], dtype)


def _split(values: np.ndarray, lengths: np.ndarray) -> list[list[Any]]:
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])] if len(lengths) else []
