"""What is found of a task without a container: files that its Dockerfile lacks, tests that no Python can read."""

import ast
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.qualify.findings import Finding, Severity

_COPY = re.compile(r"^\s*(?:COPY|ADD)\s+(.+)$", re.M | re.I)
_DEAD = re.compile(
    r"^.*(?:errors? during collection|ERROR collecting|no tests ran|collected 0 items|No module named pytest"
    r"|: not found|command not found).*$",
    re.M,
)


def static_findings(task: Path) -> list[Finding]:
    """Return what can be said of a task without a trial. Blocks."""
    lacking = [f"its Dockerfile copies {name}, which is not in environment/" for name in _lacking(task / "environment")]
    return [
        *(Finding("build", Severity.ERROR, why) for why in lacking[:1]),
        *(Finding("tests cannot be read", Severity.WARNING, why) for why in _unreadable(task)),
    ]


def _lacking(folder: Path) -> Iterator[str]:
    """Sources of COPY and ADD that are missing, as far as these name plain files of the folder."""
    dockerfile = folder / "Dockerfile"
    text = dockerfile.read_text(errors="replace") if dockerfile.is_file() else ""
    for line in _COPY.findall(re.sub(r"\\[ \t]*\n", " ", text)):
        try:
            words = json.loads(line) if line.startswith("[") else shlex.split(line)
        except ValueError:
            continue
        if any(word.startswith(("--from", "<<")) for word in words):
            continue
        for name in [word for word in words if not word.startswith("--")][:-1]:
            if not re.search(r"[$*?\[]|://|^git@", name) and not (folder / name.lstrip("/")).exists():
                yield name


def _unreadable(task: Path) -> Iterator[str]:
    for file in sorted((*task.glob("tests/**/test_*.py"), *task.glob("steps/*/tests/**/test_*.py"))):
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            yield f"{file.relative_to(task)}: {getattr(error, 'msg', error)} in line {getattr(error, 'lineno', '?')}"


def judge_dead(output: str) -> list[Finding]:
    """`output`: of the tests where nothing was done. Where none ran, perhaps none ever does."""
    if (line := _DEAD.search(output)) is None:
        return []
    detail = (
        f"no work was done, and no test ran: {line[0].strip()[:200]}. If the work does not bring that, none can pass"
    )
    return [Finding("verifier may be dead", Severity.WARNING, detail)]
