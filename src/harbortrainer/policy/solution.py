"""A task's solution as a policy: the statements of its script become Terminus-2 answers, given in order."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tinker

COMMANDS_A_TURN = 5
QUICK_SEC, USUAL_SEC, LONG_SEC = 0.1, 10.0, 60.0  # most seconds to wait for a command
START, GO_ON = "The terminal is ready.", "The command was executed."
DONE, SURE = "The command was executed.", "The work is finished."
PLAN, FINISH = "Follow the task word for word.", "Mark the task as complete."

_SHELLS = re.compile(r"#!\s*(\S*/)?(env\s+(-S\s+)?)?(ba|da|z|k)?sh\b")
_OPTIONS = re.compile(r"set(\s+[-+][a-zA-Z]*o\s+[a-z]+|\s+[-+][a-zA-Z]+)+\s*;?\s*(#.*)?")
_EXIT = re.compile(r"exit(\s+\d+)?\s*;?\s*(#.*)?")
_HEREDOC = re.compile(r"wanted [`'](.*)'\)$", re.MULTILINE)
_JOINED = re.compile(r"(?<!\\)(\\\\)*\\$")
_OPERATORS = re.compile(r"[|;`]|&&|\$\(")
_QUICK = re.compile(r"(bind|cat|cd|chmod|chown|cp|echo|export|grep|head|ln|ls|mkdir|mv|printf|rm|set|tail|touch)\s")
_LONG = re.compile(r"\b(apt|apt-get|cargo|cmake|conda|curl|gcc|git clone|go|make|npm|pip3?|python3?|sleep|uv|wget)\s")
_GIT = re.compile(r"\bgit\s.*\b(blame|branch|diff|grep|log|merge|pull|reflog|show|stash|tag)\b")

# A script has no terminal: on one, these characters and programs do something else.
_AT_A_TERMINAL = (
    (re.compile(r"(?<![$\[{])!(?![\s=(])"), "set +H"),  # history expansion
    (re.compile(r"\t"), "bind 'set disable-completion on'"),  # Tab completes
    (_GIT, "export GIT_PAGER=cat GIT_MERGE_AUTOEDIT=no"),  # a pager or an editor takes the next keys
    (re.compile(r"\bapt(-get)?\s"), "export DEBIAN_FRONTEND=noninteractive"),
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole shell statement of one or more lines, and the comment above it."""

    text: str
    comment: str = ""

    @property
    def seconds(self) -> float:
        """The longest wait for its end."""
        line, more, _ = self.text.partition("\n")
        if _LONG.search(line):
            return LONG_SEC
        return USUAL_SEC if more or _OPERATORS.search(line) or not _QUICK.match(line) else QUICK_SEC


def is_shell(script: str) -> bool:
    """Return whether a shell runs the script: it has no `#!` line, or one that names a shell."""
    return not script.startswith("#!") or _SHELLS.match(script) is not None


def statements(script: str) -> list[Statement]:
    """Return the script's statements, for a shell that stays open.

    Leaves out comments, `set` with options (`set -e` would end the shell at the first failure), and all that follows
    an `exit` outside of any statement. `bash -n` decides where a statement ends; it runs nothing.
    """
    lines = script.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
    found: list[Statement] = []
    comments: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if not line or line.startswith("#"):
            comments = [*comments, line.strip("# \t")] if line and not line.startswith("#!") else []
            at += 1
            continue
        end = _end(lines, at)
        text = "\n".join(lines[at:end]).strip()
        if _EXIT.fullmatch(text):
            break
        if not _OPTIONS.fullmatch(text):
            found.append(Statement(text, " ".join(filter(None, comments))))
        at, comments = end, []
    return found


def _end(lines: Sequence[str], start: int) -> int:
    """Index of the line after the statement that begins at `start`; the number of lines if bash accepts none."""
    end = start + 1
    while end < len(lines):
        awaited = _awaited("\n".join(lines[start:end]))
        if awaited is None:
            return end
        closing = (i for i in range(end, len(lines)) if awaited and lines[i].lstrip("\t") == awaited)
        end = next(closing, end) + 1
    return end


def _awaited(text: str) -> str | None:
    """None = `text` is complete; else the line that ends its here-document, or "" for another line."""
    if _JOINED.search(text):
        return ""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}  # BASH_ENV would be read
    command = ["bash", "-n", "-O", "extglob"]
    checked = subprocess.run(command, input=text.encode(), env=environment, capture_output=True, check=False)
    found = _HEREDOC.search(checked.stderr.decode(errors="replace"))
    return found[1] if found else "" if checked.returncode else None


def typed_answers(script: str, fits: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Return answers that type the script's statements, then one that completes the task, and one that confirms it.

    Each types at most COMMANDS_A_TURN statements, and fewer where it would not fit (one is always typed).
    """
    given = statements(script)
    text = "\n".join(statement.text for statement in given)
    left = [*(Statement(fix) for pattern, fix in _AT_A_TERMINAL if pattern.search(text)), *given]
    answers: list[str] = []
    while left:
        analysis, n = GO_ON if answers else START, 1
        while n < min(len(left), COMMANDS_A_TURN) and fits(_typing(analysis, left[: n + 1])):
            n += 1
        answers.append(_typing(analysis, left[:n]))
        left = left[n:]
    return [*answers, _answer(DONE, FINISH, complete=True), _answer(SURE, FINISH, complete=True)]


def _typing(analysis: str, typed: Sequence[Statement]) -> str:
    plan = " ".join(statement.comment for statement in typed if statement.comment) or PLAN
    return _answer(analysis, plan, *typed)


def _answer(analysis: str, plan: str, *typed: Statement, complete: bool = False) -> str:
    commands = [{"keystrokes": f"{statement.text}\n", "duration": statement.seconds} for statement in typed]
    return terminus_answer(analysis, plan, commands, complete)


def terminus_answer(analysis: str, plan: str, commands: Sequence[Mapping[str, Any]], complete: bool) -> str:
    """Return the text of an answer of Terminus-2."""
    answer = {"analysis": analysis, "plan": plan, "commands": commands, "task_complete": complete}
    return json.dumps(answer, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Solutions:
    """The answers of tasks by `Task.ref`, as token ids."""

    completions: Mapping[Any, Sequence[Sequence[int]]]

    def of_trial(self, task: Path | str) -> SolutionClient:
        """Return the policy of one trial. Raises KeyError for a task without answers."""
        return SolutionClient(self.completions[task])


class SolutionClient:
    """A sampling client that gives one answer a request, in order, and repeats the last. Every logprob is 0."""

    def __init__(self, completions: Sequence[Sequence[int]]) -> None:
        self._completions = completions
        self._given = 0

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> tinker.types.SampleResponse:
        """Return the next answer, cut at `max_tokens` as a policy's would be."""
        whole = self._completions[min(self._given, len(self._completions) - 1)]
        self._given += 1
        tokens = np.array(whole[: sampling_params.max_tokens], np.int32)
        reason = "stop" if len(tokens) == len(whole) else "length"
        logprobs = np.zeros(len(tokens), np.float32)
        one = tinker.types.SampledSequence(stop_reason=reason, sequence_id="", tokens_np=tokens, logprobs_np=logprobs)
        return tinker.types.SampleResponse(sequences=[one])
