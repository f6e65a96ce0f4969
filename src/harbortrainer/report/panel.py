"""One trial in full: conversation, verifier output and tokens, cut to what a page can carry."""

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Turn
from harbortrainer.report.trials import TrialRow
from harbortrainer.run.conversations import DAMAGED, OWN_FILE, own_conversation
from harbortrainer.run.trajectories import read_log_ratios, read_trajectory
from harbortrainer.text import shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Pieces:
    """Texts of tokens. `known`: a tokenizer was found on disk; without one a token's text is its id."""

    def __init__(self, model_name: str) -> None:
        self._tokenizer = _tokenizer(model_name) if model_name else None
        self.known = self._tokenizer is not None
        self.text = lru_cache(maxsize=None)(self._decode)

    def _decode(self, token: int) -> str:
        if self._tokenizer is None:
            return f"{token} "
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        if "\u2581" in piece:  # sentencepiece's space, which decoding alone would drop
            return piece.replace("\u2581", " ")
        return self._tokenizer.decode([token], skip_special_tokens=False) or piece


def _tokenizer(model_name: str) -> "Tokenizer | None":
    """The tokenizer of a local directory or of the hub's cache; None = there is none that can be read."""
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    local = Path(model_name).expanduser() / "tokenizer.json"
    try:
        file = str(local) if local.is_file() else try_to_load_from_cache(model_name, "tokenizer.json")
        return Tokenizer.from_file(file) if isinstance(file, str) else None
    except Exception:  # noqa: BLE001 -- for a damaged file the library raises nothing narrower
        return None


MOST_CHARACTERS = 12_000  # of one message
MOST_MESSAGES = 120
MOST_TOKENS = 8_000  # of one trial
_BLANK = re.compile(r"(?:[ \t]*\n){6,}")
NEWLINE = "\n"
_FILES = (
    OWN_FILE,
    "result.json",
    "depends.json",
    "causes.json",
    "agent/trajectory.json",
    "verifier/test-stdout.txt",
    "trial.log",
    "exception.txt",
)
_OUTPUT = ("test-stdout.txt", "test-stderr.txt", "reward.txt", "reward.json")


def panel(run: Path, trial: TrialRow, pieces: Pieces) -> dict[str, Any]:
    """Return what the trial left on disk, as JSON values; a note replaces what a missing or damaged file held."""
    folder = run / "rollouts" / trial.folder / trial.name
    messages = conversation(folder) or talk(folder)
    shown: dict[str, Any] = {"notes": [], "files": [name for name in _FILES if (folder / name).is_file()]}
    try:
        trajectory = read_trajectory(run / "trajectories" / trial.folder / f"{trial.name}.npz")
        ratios = read_log_ratios(run, trial.folder, trial.name)
        of_turns = tokens(trajectory.turns, pieces, ratios, trajectory.side_segments)
        shown["tokens"] = of_turns
        shown["shaping"] = trajectory.shaping
        messages = messages or [{"role": "agent", "text": cut(turn.text)} for turn in trajectory.turns]
    except UserError as error:
        shown["notes"].append("no tokens: " + str(error).partition("; ")[0].rpartition("/")[2])
    if len(messages) > MOST_MESSAGES:
        shown["notes"].append(f"{len(messages) - MOST_MESSAGES} messages in the middle are left out")
        messages = messages[: MOST_MESSAGES // 2] + messages[-MOST_MESSAGES // 2 :]
    output = {name: text for name in _OUTPUT if (text := _text(folder, f"verifier/{name}"))}
    return shown | {"messages": messages, "verifier": output, "error": _text(folder, "exception.txt")}


def conversation(folder: Path) -> list[dict[str, Any]]:
    """Return messages of a trial's trajectory.json (ATIF): role and text; of the agent also `calls` and what it `saw`.

    `at`: seconds after the first one. [] = none, or just being written.
    """
    found = read_inside(folder, folder / "agent" / "trajectory.json")
    try:
        steps = json.loads(found[0] if found else b"")["steps"]
        shown = [_message(step) for step in steps]
        times = [datetime.fromisoformat(step["timestamp"]).timestamp() for step in steps if step.get("timestamp")]
    except DAMAGED:
        return []
    if len(times) == len(shown):
        for message, at in zip(shown, times, strict=True):
            message["at"] = round(at - times[0], 2)
    return shown


ROLES = {"assistant": "agent", "tool": "result"}  # of a venue's own conversation; others are shown as they are


def talk(folder: Path) -> list[dict[str, Any]]:
    """Get venue's own conversation: role and text; of agent and user also `calls`; results name their tool. [] = none.

    System text and tools come first; the last message is the user's that ended the conversation, if one did.
    """
    messages, tools = own_conversation(folder)
    shown: list[dict[str, Any]] = []
    names: list[str] = []  # of the tools whose results come next
    for message in messages:
        one = {"role": ROLES.get(message["role"], message["role"]), "text": cut(message["content"])}
        if message["role"] == "tool":
            about = [*names[:1], *(["failed"] if message.get("error") else [])]
            names = names[1:]
            one |= {"about": " ".join(about)} if about else {}
            one |= {"role": "the user's tool"} if message.get("to") == "user" else {}
        elif calls := message.get("calls"):
            names = [call["name"] for call in calls]
            one["calls"] = [cut(f"{call['name']} {_json(call['arguments'])}") for call in calls]
        shown.append(one)
    if tools:
        shown.insert(1, {"role": "tools", "text": cut("\n".join(map(_json, tools)))})
    return shown


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tokens(
    turns: tuple[Turn, ...], pieces: Pieces, log_ratios: np.ndarray | None = None, side: Sequence[int] = ()
) -> dict[str, Any]:
    """`words`: texts; each turn: `seen` and `sampled` as indices of words, `logprobs` and `ratios` of the sampled ones.

    `log_ratios`: trainer to sampler, of all sampled tokens but those of the segments `side`, segment after segment;
    ignored where their number differs.
    `left_out`: tokens of the first turn that exceeds MOST_TOKENS in all, and of the later ones.
    """
    words: dict[int, int] = {}
    shown: list[dict[str, Any]] = []
    left = MOST_TOKENS
    for turn, ratios in zip(turns, _ratios(turns, log_ratios, side), strict=True):
        length = len(turn.new_tokens_T) + len(turn.completion_tokens_T)
        if length > left:
            break
        left -= length
        shown.append(
            {
                "seen": [words.setdefault(token, len(words)) for token in turn.new_tokens_T],
                "roles": list(turn.roles_T),  # [] = not known, of a run from before
                "sampled": [words.setdefault(token, len(words)) for token in turn.completion_tokens_T],
                "logprobs": [round(value, 3) for value in turn.logprobs_T],
                "ratios": ratios,
                "segment": turn.segment,
                "weights": turn.weights_version,
                "truncated": turn.truncated,
                "seconds": round(turn.seconds, 3),
            }
        )
    rest = sum(len(t.new_tokens_T) + len(t.completion_tokens_T) for t in turns[len(shown) :])
    texts = [pieces.text(token) for token in words]
    return {"words": texts, "ids": list(words), "turns": shown, "left_out": rest, "named": pieces.known}


def _ratios(turns: Sequence[Turn], log_ratios: np.ndarray | None, side: Sequence[int]) -> list[list[float]]:
    """p(trainer) / p(sampler) of each turn's sampled tokens; [] = unknown."""
    found: list[list[float]] = [[] for _ in turns]
    own = [index for index, turn in enumerate(turns) if turn.segment not in side]
    if log_ratios is None or len(log_ratios) != sum(len(turns[index].completion_tokens_T) for index in own):
        return found
    left = np.exp(log_ratios).round(4).tolist()
    for index in sorted(own, key=lambda index: turns[index].segment):
        length = len(turns[index].completion_tokens_T)
        found[index], left = left[:length], left[length:]
    return found


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` without long runs of blank lines; of a long text the beginning and the end."""
    text = _BLANK.sub(lambda lines: f"\n\n[… {lines[0].count(NEWLINE) - 1} blank lines …]\n\n", text.rstrip())
    return shortened(text, most - most // 3, most // 3)


def _message(step: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": str(step.get("source", "?")), "text": cut(_plain(step.get("message")))}
    if step.get("reasoning_content"):
        message["thought"] = cut(_plain(step["reasoning_content"]))
    if calls := step.get("tool_calls"):
        message["calls"] = [cut(_call(call)) for call in calls]
    if observation := step.get("observation"):
        message["saw"] = cut("\n".join(_plain(result.get("content")) for result in observation.get("results", ())))
    return message


def _call(call: Mapping[str, Any]) -> str:
    """The keystrokes as typed; of other tools the name and the arguments."""
    arguments = call.get("arguments")
    keys = arguments.get("keystrokes") if isinstance(arguments, Mapping) else None
    return keys if isinstance(keys, str) else f"{call.get('function_name', '?')} {json.dumps(arguments)}"


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or f"[{part.get('type', '?')}]") for part in content)
    return "" if content is None else str(content)


def _text(folder: Path, name: str) -> str:
    if (found := read_inside(folder, folder / name, 4 * MOST_CHARACTERS)) is None:
        return ""
    data, size = found
    more = f"\n[… {size - len(data)} bytes left out …]" if size > len(data) else ""
    return cut(data.decode(errors="replace")) + more


def read_inside(folder: Path, file: Path, most: int = -1) -> tuple[bytes, int] | None:
    """Read the first `most` bytes and the size; None for what is no plain file below `folder`, also by way of links."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            found = os.fstat(opened.fileno())
            held = Path(f"/proc/self/fd/{opened.fileno()}")  # where it was opened, whatever has its name now
            real = (held if held.exists() else file).resolve()
            if stat.S_ISREG(found.st_mode) and real.is_relative_to(folder.resolve()):
                return opened.read(most), found.st_size
    except (OSError, ValueError, RuntimeError):  # gone, a name with a null byte, links in a circle
        pass
    return None
