"""What crosses from the API process to the engine: types of requests, extended in both, and a sign of life.

Upstream: skyrl/tinker/types.py, AdamParams has no grad_clip_norm, so what a client sets is dropped without a word;
SampleInput names a sampler and not its weights.
"""

# pyright: reportMissingImports=false
from typing import Any

import numpy as np
from pydantic import BaseModel
from skyrl.tinker import types

PREFIX = "external--"  # of the names of sampler checkpoints that are external weights
FILLING = 2  # copies of a prompt's keys and values while it is computed, beside those of its seat
LISTENS_FILE = "SKYRL_TX_LISTENS_FILE"  # in the environment: api_listening keeps two times with it


def longest_gap(timeout_sec: float) -> float:
    """Seconds between two signs of the API that it listens; the SDK's heartbeats come every 10 s."""
    return max(timeout_sec / 2, 2.0)


class AdamParams(types.AdamParams):
    grad_clip_norm: float = 0.0  # global norm of the summed gradient; 0: no clipping


class OptimStepInput(types.OptimStepInput):
    adam_params: AdamParams


class Layout(BaseModel):
    """Of a tensor (places of a prompt but the last, K): dense, or CSR with the first cell of each row, and columns."""

    shape: list[int]
    starts: list[int] | None = None
    columns: list[int] | None = None

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each value."""
        if self.starts is None:
            rows, columns = np.divmod(np.arange(self.shape[0] * self.shape[1]), self.shape[1])
            return rows, columns
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts)), np.array(self.columns, int)


class TargetScores(Layout):
    values: list[float]


class Targets(Layout):
    """`ids`: -1 where nothing is asked for. `alone`: the prompt's own log-probabilities are not."""

    ids: list[int]
    alone: bool

    def scores(self, found: np.ndarray) -> TargetScores:
        """`found`: (at least as many places, at least K)."""
        values = np.where(np.array(self.ids) < 0, 0.0, found[self.cells()])
        return TargetScores(**self.model_dump(include=set(Layout.model_fields)), values=values.tolist())


class SampleOutput(types.SampleOutput):
    target_prompt_logprobs: TargetScores | None = None


class SampleInput(types.SampleInput):
    """`weights`: the version of the sampler's file when the sample was asked for; None for the base model.

    `last_n`: prompt tokens whose log-probabilities are wanted, from the end; None: all.
    """

    weights: str | None = None
    last_n: int | None = None
    targets: Targets | None = None


def only_last(output: types.SampleOutput, last_n: int | None) -> types.SampleOutput:
    """Without the log-probabilities of earlier prompt tokens."""
    for name in ("prompt_logprobs", "topk_prompt_logprobs"):
        if last_n and (rows := getattr(output, name)) is not None:
            setattr(output, name, [None] * (len(rows) - last_n) + rows[-last_n:])
    return output


def sampler_file(base: Any, model_id: str, checkpoint_id: str) -> Any:
    """`base`: the folder of all checkpoints, which may be one in somebody's cloud."""
    return base / model_id / "sampler_weights" / f"{checkpoint_id}.tar.gz"


def apply_samples() -> None:
    types.SampleInput, types.SampleOutput = SampleInput, SampleOutput


def apply() -> None:
    types.AdamParams = AdamParams
    types.OptimStepInput = OptimStepInput
