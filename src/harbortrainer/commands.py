"""Commands in the words of messages: as a user of this installation types them."""

import contextlib
import json
from pathlib import Path

PLAN_FILE = "plan.json"  # of an evaluation: its policies and tasks
COMMAND, TRAIN, SFT = "command", "train", "sft"  # a key of config.json, and its values; without it: train
_CHECKOUT = (Path(__file__).parents[1] / "train.py").is_file()  # the wheel has no `src`


def command(words: str) -> str:
    """The command line of WORDS, `train resume=X`."""
    return f"python -m src.{words}" if _CHECKOUT else f"harbortrainer {words}"


def continuing(run: Path) -> str:
    """The command that continues the training, the fine-tuning or the evaluation of this folder."""
    if (run / PLAN_FILE).is_file():
        return command(f"evaluate out={run}")
    name = TRAIN
    with contextlib.suppress(OSError, ValueError, AttributeError):  # missing or damaged
        name = json.loads((run / "config.json").read_text()).get(COMMAND, TRAIN)
    return command(f"{name} resume={run}")
