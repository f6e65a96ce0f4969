"""What the trainer thought of each token that was sampled, kept for whoever looks at the run: `log_ratios/STEP.npz`."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from src.learning.datums import TrainingSequence
from src.run.files import make_folder, replacing
from src.run.trajectory_file import DAMAGE

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
    with replacing(run / FOLDER / f"step_{step:06d}.npz") as file:
        file.write(archive.getvalue())


def read_log_ratios(run: Path, batch: str, trial: str) -> np.ndarray | None:
    """Of one trial of the batch `step_000003`; None where none are kept or they are damaged."""
    try:
        with (run / FOLDER / f"{batch}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays[trial].astype(np.float32)
    except DAMAGE:
        return None
