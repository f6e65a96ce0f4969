"""Commands in the words of messages: as a user of this installation types them.

Messages, settings and scripts name what a checkout has. A wheel brings the same files below PREFIX/share/harbortrainer
(scripts/wheel_files.py): there, `fitted` gives the command that runs or shows them.
"""

import contextlib
import json
import re
from pathlib import Path
from typing import NamedTuple

PLAN_FILE = "plan.json"  # of an evaluation: its policies and tasks
COMMAND, TRAIN, SFT = "command", "train", "sft"  # a key of config.json, and its values; without it: train
IN_CHECKOUT = (Path(__file__).parents[1] / "train.py").is_file()  # site-packages has no train.py beside the package


class Script(NamedTuple):
    """A file of the repository that `harbortrainer NAME` runs, wherever it was installed."""

    path: str
    usage: str
    about: str


SCRIPTS = {
    "quickstart": Script("run_quickstart.sh", "[field=value ...]", "train a tiny policy on Docker trials"),
    "quickstart agent": Script("run_quickstart_agent.sh", "[field=value ...]", "the same through mini-swe-agent"),
    "quickstart tools": Script("run_quickstart_tools.sh", "[field=value ...]", "the same with tool calls, no Docker"),
    "setup": Script("scripts/setup.sh", "--PART ...", "bring the server's environment, Docker, images, extras"),
    "server start": Script("scripts/start_skyrl_tx.sh", "[--background] MODEL [TP]", "start the self-hosted server"),
    "server stop": Script("scripts/stop_skyrl_tx.sh", "[PORT]", "stop it"),
    "server test": Script("scripts/test_skyrl_tx.py", "[URL] [MODEL]", "try each call that training needs"),
    "host start": Script("scripts/start_host.sh", "--head | ADDRESS", "start this machine's node for hosts=ray"),
    "agents pack": Script("scripts/agents/pack", "FOLDER AGENT ...", "fill a folder for agents_dir with programs"),
    "datasets bench": Script("scripts/get_terminal_bench.sh", "[2.0 | 2.1]", "fetch Terminal-Bench 2"),
    "datasets easy": Script("scripts/easy/make_tasks.py", "[FOLDER [TIMES]]", "write 144 easy tasks"),
}  # fmt: skip
SPELLINGS = {  # a pattern of sed and of Python, and what stands for it where there is no checkout
    **{rf"([^ =(]*/)?{re.escape(script.path)}": f"harbortrainer {name}" for name, script in SCRIPTS.items()},
    r"python -m scripts\.easy\.make_tasks": "harbortrainer datasets easy",
    r"python -m src\.": "harbortrainer ",
    r"\./run\.sh": "harbortrainer train backend=tinker",
    r"\./run_skyrl_tx\.sh": "harbortrainer train backend=skyrl-tx",
    r"\bdocs/([a-z_]+)\.md": r"harbortrainer docs \1",
}


def fitted(text: str, checkout: bool | None = None) -> str:
    """Return the text with names of a checkout's files as commands where there is none. `checkout`: None = look."""
    checkout = IN_CHECKOUT if checkout is None else checkout
    if not checkout and ("scripts" in text or "src." in text or "docs/" in text or "run_" in text or "run.sh" in text):
        for pattern, said in SPELLINGS.items():
            text = re.sub(pattern, said, text)
    return text


def command(words: str) -> str:
    """Return the command line of WORDS, `train resume=X`."""
    return fitted(f"python -m src.{words}")


def continuing(run: Path) -> str:
    """Return the command that continues the training, the fine-tuning or the evaluation of this folder."""
    if (run / PLAN_FILE).is_file():
        return command(f"evaluate out={run}")
    name = TRAIN
    with contextlib.suppress(OSError, ValueError, AttributeError):  # missing or damaged
        name = json.loads((run / "config.json").read_text()).get(COMMAND, TRAIN)
    return command(f"{name} resume={run}")
