"""Files of a run's trials: one .npz for each trajectory, and one for each step's log-ratios of trainer to sampler."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.durable.files import make_folder, replacing
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn, batch_name

FORMAT = 1  # of a trajectory's file
FOLDER = "log_ratios"
# Errors of reading a damaged archive: checksums, structure, compressed streams, and the checks below.
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
    """Write `<trial_name>.npz` when the trial ends; it survives a crash of the machine. Raises DiskFault."""
    return _keep(folder / f"{trajectory.trial_name}.npz", packed(trajectory))


def packed(trajectory: Trajectory) -> bytes:
    """Return the content of a trajectory's file.

    tokens_T: each turn's new and sampled ids in order; roles_T: a byte for each new one (`Role`), missing where not
    known; logprobs_T: of the sampled ones; turns: a row each; meta: JSON.
    """
    turns = trajectory.turns
    meta = {field.name: getattr(trajectory, field.name) for field in fields(trajectory) if field.name != "turns"}
    meta |= {"format": FORMAT, "texts": [turn.text for turn in turns]}
    arrays = {
        "meta": np.array(json.dumps(meta)),
        "tokens_T": np.array([t for turn in turns for t in (*turn.new_tokens_T, *turn.completion_tokens_T)], np.int32),
        "logprobs_T": np.array([value for turn in turns for value in turn.logprobs_T], np.float32),
        "turns": np.array([_row(turn) for turn in turns], TURN),
    }
    if all(len(turn.roles_T) == len(turn.new_tokens_T) for turn in turns):
        arrays["roles_T"] = np.frombuffer(b"".join(turn.roles_T for turn in turns), np.uint8)
    return _archive(arrays)


def unpacked(data: bytes) -> Trajectory:
    """Return what `packed` has packed; its logprobs are float32. Raises one of DAMAGE."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return _trajectory({name.removesuffix(".npy"): _read(archive, name) for name in archive.namelist()})


def read_trajectory(path: Path) -> Trajectory:
    """Read a trajectory; its logprobs are float32. Raises UserError when the file is damaged."""
    try:
        trajectory = unpacked(path.read_bytes())
        if trajectory.trial_name != path.stem:
            raise ValueError(f"it is that of {trajectory.trial_name}")
    except DAMAGE as error:
        raise UserError(f"{path}: damaged trajectory file ({error}); delete it and its trial runs again") from None
    return trajectory


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """The whole member first: only then is its checksum compared."""
    return np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)


def read_batch(folder: Path, names: str = "*") -> dict[str, Trajectory]:
    """Return finished trials of one batch by trial name. `names`: a glob of those to read."""
    return {path.stem: read_trajectory(path) for path in sorted(folder.glob(f"{names}.npz"))}


def _row(turn: Turn) -> tuple[Any, ...]:
    lengths = (len(turn.new_tokens_T), len(turn.completion_tokens_T))
    return (*lengths, turn.segment, turn.weights_version, turn.truncated, turn.seconds)


def _trajectory(arrays: dict[str, np.ndarray]) -> Trajectory:
    meta: dict[str, Any] = json.loads(str(arrays["meta"]))
    if (found := meta.pop("format")) != FORMAT:
        raise ValueError(f"format {found}, this program reads {FORMAT}")
    tokens, logprobs = iter(arrays["tokens_T"].tolist()), iter(arrays["logprobs_T"].tolist())
    roles = iter(arrays["roles_T"].tolist()) if "roles_T" in arrays else iter(())  # a run from before has none
    turns = tuple(
        Turn(
            segment=int(row["segment"]),
            new_tokens_T=tuple(islice(tokens, row["new"])),
            completion_tokens_T=tuple(islice(tokens, row["sampled"])),
            logprobs_T=tuple(islice(logprobs, row["sampled"])),
            weights_version=int(row["weights_version"]),
            truncated=bool(row["truncated"]),
            seconds=float(row["seconds"]),
            text=text,
            roles_T=bytes(islice(roles, row["new"])),
        )
        for row, text in zip(arrays["turns"], meta.pop("texts"), strict=True)
    )
    meta.pop("suspect", None)  # of older files; others have no `depends`, or no side segments
    side, depends = meta.pop("side_segments", ()), meta.pop("depends", None)
    lists = {"side_segments": tuple(side), "depends": None if depends is None else tuple(depends)}
    return Trajectory(turns=turns, outcome=Outcome(meta.pop("outcome")), **lists, **meta)


def write_log_ratios(run: Path, step: int, ratios: Mapping[str, np.ndarray]) -> None:
    """Write one batch's, by trial name, as float16: at most two bytes a sampled token. Blocks. Raises DiskFault.

    They are of the weights before each sequence's optimizer step: in a batch's first step those that sampled it.
    """
    if ratios:
        small = {name: values.astype(np.float16) for name, values in ratios.items()}
        _keep(run / FOLDER / f"{batch_name('step', step)}.npz", _archive(small))


def read_log_ratios(run: Path, batch: str, trial: str) -> np.ndarray | None:
    """Read those of one trial of the batch `step_000003`; None where the file is missing or damaged."""
    try:
        with (run / FOLDER / f"{batch}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays[trial].astype(np.float32)
    except DAMAGE:
        return None


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **arrays)
    return archive.getvalue()


def _keep(path: Path, data: bytes) -> Path:
    make_folder(path.parent)
    with replacing(path) as file:
        file.write(data)
    return path
