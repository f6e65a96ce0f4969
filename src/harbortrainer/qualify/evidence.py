"""Why a task's solution did not earn its reward, in a user's words, from what its trial left."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harbor.models.task.config import TaskConfig

from harbortrainer.docker.images.builds import BUILDERS_OWN
from harbortrainer.docker.integrity.footprint import FOOTPRINT
from harbortrainer.durable.files import cache_folder, make_folder, replace_text
from harbortrainer.harbor import task_config
from harbortrainer.venues.harbor.install import failed_fetch, outputs

LATE = "AgentTimeoutError"
_LONGEST = 240  # characters of a line that is quoted
_SGR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REFUSED = re.compile(
    r"^.*(?:connection refused|ECONNREFUSED|could ?n[o']t connect to server|refused to connect"
    r"|cannot assign requested address).*$",  # of ::1 where it does not exist, after 127.0.0.1 refused
    re.I | re.M,
)
_PORT = re.compile(r"(?:\bport\W{1,3}|\[?[\w.-]+\]?:)(\d{2,5})(?![.\w])", re.I)
# What tests print of a failure, the most telling form first; of one form the first line counts.
_FAILURES = tuple(
    re.compile(pattern, re.M)
    for pattern in (
        r"^(?:FAILED|ERROR) \S+::.*$",
        r"^E {2,}\S.*$",
        r"^\w*(?:\.\w+)*(?:Error|Exception)\b(?:: .*)?$",
        r"^not ok \d+.*$",
        r"^.*\b(?:AssertionError|FAIL(?:ED|URE)?)\b.*$",
    )
)
_TROUBLE = re.compile(
    r"^.*(?:command not found|: not found|No such file or directory|Permission denied|Traceback \(most recent).*$", re.M
)


@dataclass(frozen=True)
class Evidence:
    """What the solution and the tests printed. `status`: the solution's exit code; `ports`: on which something listened

    when it had ended, None = not known.
    """

    solution: str = ""
    tests: str = ""
    status: int = 0
    ports: frozenset[int] | None = None


def read_evidence(trial: Path) -> Evidence:
    """Read the evidence of a trial's folder. Blocks."""
    solution = _texts(trial, "oracle.txt")
    codes = [int(text) for text in _texts(trial, "exit-code.txt") if text.strip().isdigit()]
    try:
        ports = frozenset[int](json.loads((trial / FOOTPRINT).read_text())["ports"])
    except (OSError, ValueError, KeyError):
        ports = None
    return Evidence("\n".join(solution), "\n".join(outputs(trial)), next(iter(codes), 0), ports)


def _texts(trial: Path, name: str) -> list[str]:
    files = [file for folder in ("agent", "steps/*/agent") for file in sorted(trial.glob(f"{folder}/{name}"))]
    return [file.read_text(errors="replace") for file in files]


def why_failed(task: Path, left: Evidence, fault: str, *, late: bool) -> str:
    """Return the cause, then what else failed. `fault`: what prevented a grade; `late`: the agent's limit was over."""
    config = task_config(task)
    if fault:
        return _of_fault(fault, left, config)
    before = [*_of_solution(left, config.agent.timeout_sec if late else None), *_of_service(task, left)]
    return "; ".join([*before, *_of_tests(left)][:2]) or "the tests printed nothing"


def _of_fault(fault: str, left: Evidence, config: TaskConfig) -> str:
    last = f"; the tests printed last: {_last(left.tests)}" if left.tests.strip() else ""
    kind, _, text = fault.partition(": ")
    if kind == "VerifierTimeoutError":
        return f"verification was not over after {config.verifier.timeout_sec:g} s, the timeout_sec of task.toml{last}"
    if kind == "RewardFileNotFoundError":
        return f"the tests wrote no /logs/verifier/reward.txt or reward.json{last}"
    if kind == "RewardFileEmptyError":
        return f"the tests left an empty reward{last}"
    return f"the reward cannot be read: {text}" if kind == "VerifierOutputParseError" else fault


def _of_solution(left: Evidence, limit: float | None) -> Iterable[str]:
    if limit is not None:
        yield f"the solution was not over after {limit:g} s, the agent's timeout_sec in task.toml"
    elif line := failed_fetch(left.solution):
        yield f"the solution could not fetch from the network: {_quoted(line)}"
    elif left.status:
        yield f"the solution ended with exit code {left.status}: {_last(left.solution) or 'it printed nothing'}"


def _of_service(task: Path, left: Evidence) -> Iterable[str]:
    """What the tests could not connect to."""
    if (refused := _REFUSED.search(left.tests)) is None:
        return
    ports = [int(port) for port in _PORT.findall(refused[0])] or _named_ports(task)
    silent = [port for port in ports if left.ports is not None and port not in left.ports]
    if silent:
        others = f" (on {', '.join(map(str, sorted(left.ports)))} it did)" if left.ports else ""
        yield f"nothing listened on port {silent[0]} when verification began{others}"
    else:
        yield f"the tests could not connect: {_quoted(refused[0])}"


def _named_ports(task: Path) -> list[int]:
    files = [task / "instruction.md", *sorted(task.glob("steps/*/instruction.md"))]
    return [int(port) for file in files if file.is_file() for port in _PORT.findall(file.read_text(errors="replace"))]


def _of_tests(left: Evidence) -> Iterable[str]:
    text = _SGR.sub("", left.tests)
    found = next((lines for pattern in _FAILURES if (lines := pattern.findall(text))), None)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"the tests say: {_quoted(found[0])}{more}"
    elif not left.status and (trouble := _TROUBLE.search(left.solution)):
        yield f"the solution printed: {_quoted(trouble[0])}"
    if not found and text.strip():
        yield f"the tests printed last: {_last(text)}"


def why_not_built(error: str) -> str:
    """Return the cause first, then the step of the Dockerfile, of what the builder printed."""
    head, *log = error.strip().splitlines()
    said = [line for one in log if (line := _quoted(one)) and not line.startswith(BUILDERS_OWN)]
    step = next((_quoted(one) for one in reversed(log) if one.startswith("Step ")), "")
    return f"{said[-1]} ({step or _quoted(head)})" if said else _quoted(head)


def _last(text: str) -> str:
    lines = [line for line in map(_quoted, text.splitlines()) if line]
    return lines[-1] if lines else ""


def _quoted(line: str) -> str:
    """As printable characters, not too many."""
    return " ".join("".join(one if one.isprintable() else " " for one in _SGR.sub("", line)).split())[:_LONGEST]


def keep_output(name: str, digest: str, left: Evidence) -> Path:
    """Write what solution and tests printed to the cache, since the trial's folder goes. Blocks. Raises DiskFault."""
    file = cache_folder("tasks") / "failed" / f"{name}-{digest[:12]}.txt"
    make_folder(file.parent)
    replace_text(file, f"# solution: exit code {left.status}\n{left.solution}\n# tests\n{left.tests}\n")
    return file
