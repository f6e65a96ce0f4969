"""harbortrainer: GRPO over Harbor terminal tasks, trained through the Tinker API (cloud or self-hosted).

From Python: `train`, `sft`, `evaluate` and what they take (docs/extending.md); imported when they are used.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbortrainer.face import Config as Config
    from harbortrainer.face import EvalConfig as EvalConfig
    from harbortrainer.face import Evaluation as Evaluation
    from harbortrainer.face import Outcome as Outcome
    from harbortrainer.face import Program as Program
    from harbortrainer.face import Run as Run
    from harbortrainer.face import SftConfig as SftConfig
    from harbortrainer.face import Task as Task
    from harbortrainer.face import TrainingBatch as TrainingBatch
    from harbortrainer.face import TrainingSequence as TrainingSequence
    from harbortrainer.face import Trajectory as Trajectory
    from harbortrainer.face import TrajectoryGroup as TrajectoryGroup
    from harbortrainer.face import Turn as Turn
    from harbortrainer.face import UserError as UserError
    from harbortrainer.face import Venue as Venue
    from harbortrainer.face import assemble as assemble
    from harbortrainer.face import continued as continued
    from harbortrainer.face import evaluate as evaluate
    from harbortrainer.face import sft as sft
    from harbortrainer.face import train as train

# Read by Harbor and LiteLLM at import time: no telemetry, no price file fetched from the internet.
os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# "PyTorch was not found" is meant: the trainer tokenises, it holds no model.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

_FACE = {
    "Config", "EvalConfig", "Evaluation", "Outcome", "Program", "Run", "SftConfig", "Task", "TrainingBatch",
    "TrainingSequence", "Trajectory", "TrajectoryGroup", "Turn", "UserError", "Venue", "assemble", "continued",
    "evaluate", "sft", "train",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.face"), name)


class _Package(ModuleType):
    """Its names stay those of the face: Python would set `train` and `sft` to the modules of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _FACE:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
