"""What the trainer thought of each sampled token: kept beside the trajectories, shown in the report."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harbortrainer.learning.datums import trainer_log_ratios, training_sequences
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.report.panel import Pieces, tokens
from harbortrainer.run.trajectories import read_log_ratios, write_log_ratios


def two_segments() -> Trajectory:
    """Turns of segments 0, 1, 0: a history that was rewritten, and one that went on."""
    turns = [Turn(segment, (1, 2), tuple(range(10, 10 + n)), (-1.0,) * n, 0) for segment, n in ((0, 2), (1, 3), (0, 1))]
    return Trajectory("t", "s000000-p00-g00", tuple(turns), 1.0, Outcome.COMPLETED, "")


def test_ratios_are_those_of_sampled_tokens_segment_after_segment() -> None:
    trial = two_segments()
    sequences = training_sequences(trial, 1.0)
    trained = [np.arange(len(s.tokens_T), dtype=np.float32) / 64 - 1.0 for s in sequences]
    [(name, ratios)] = trainer_log_ratios(sequences, trained).items()
    assert name == trial.trial_name
    assert (ratios * 64).tolist() == [2, 3, 6, 2, 3, 4], "positions of the sampled tokens in each sequence"
    shown = tokens(trial.turns, Pieces(""), ratios.astype(np.float32))["turns"]
    assert [len(turn["ratios"]) for turn in shown] == [2, 3, 1]
    assert shown[2]["ratios"] == [pytest.approx(np.exp(6 / 64), abs=1e-4)]
    assert shown[1]["ratios"][0] == pytest.approx(np.exp(2 / 64), abs=1e-4)


def test_side_segments_have_no_ratios_and_hide_none() -> None:
    trial = replace(two_segments(), side_segments=(0,))
    sequences = training_sequences(trial, 1.0)
    [ratios] = trainer_log_ratios(sequences, [sequence.logprobs_T + 0.5 for sequence in sequences]).values()
    shown = tokens(trial.turns, Pieces(""), ratios.astype(np.float32), trial.side_segments)["turns"]
    assert [turn["ratios"] for turn in shown] == [[], [pytest.approx(np.exp(0.5), abs=1e-4)] * 3, []]


def test_they_are_kept_as_they_were_and_nothing_else_is_made_up(tmp_path: Path) -> None:
    ratios = {"a": np.array([0.5, -0.25], np.float32), "b": np.zeros(0, np.float32)}
    write_log_ratios(tmp_path, 3, ratios)
    with np.load(tmp_path / "log_ratios" / "step_000003.npz") as arrays:
        assert {arrays[name].dtype for name in ratios} == {np.dtype(np.float16)}
    kept = read_log_ratios(tmp_path, "step_000003", "a")
    assert kept is not None and kept.tolist() == [0.5, -0.25]
    assert read_log_ratios(tmp_path, "step_000003", "c") is None
    assert read_log_ratios(tmp_path, "step_000004", "a") is None
    file = tmp_path / "log_ratios" / "step_000003.npz"
    file.write_bytes(file.read_bytes()[:50])
    assert read_log_ratios(tmp_path, "step_000003", "a") is None
    write_log_ratios(tmp_path, 4, {})
    assert [path.name for path in (tmp_path / "log_ratios").iterdir()] == ["step_000003.npz"]


def test_ratios_of_another_number_of_tokens_are_not_shown() -> None:
    shown = tokens(two_segments().turns, Pieces(""), np.zeros(5, np.float32))["turns"]
    assert [turn["ratios"] for turn in shown] == [[], [], []]
