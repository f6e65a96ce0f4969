"""harbortrainer: GRPO over Harbor terminal tasks, trained through the Tinker API (cloud or self-hosted).

From Python: `train`, `sft`, `evaluate` and what they take (docs/python.md); imported when they are used.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harbortrainer.face import *  # noqa: F403 -- its __all__

# Read by Harbor and LiteLLM at import time: no telemetry, no price file fetched from the internet.
os.environ.setdefault("HARBOR_TELEMETRY", "0")
if os.path.expanduser("~") == "~":  # a user without a name: Harbor needs a home; Docker gives them this one, too
    os.environ["HOME"] = os.sep
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# "PyTorch was not found" is meant: the trainer tokenises, it holds no model.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

_FACE = {
    "Config", "EvalConfig", "LossSequence", "Outcome", "Program", "Run", "SftConfig", "Task",
    "TrainingBatch", "TrainingSequence", "Trajectory", "TrajectoryGroup", "Turn", "UserError", "Venue", "assemble",
    "continued", "evaluate", "sft", "train",
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
