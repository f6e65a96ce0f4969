"""Which tests concern what has changed: those of a plug-in and of the server run where that part changed."""

import ast
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

CORE, EVERY = "core", "every"
# of each part: its files, and the files of its tests; all other files are the core's
PARTS = {
    "tau": (r"src/harbortrainer/bundled/tau/", r"tau_\w+|desk(_policy)?"),
    "agents": (r"src/harbortrainer/bundled/agents/|scripts/agents/", r"agents(_\w+)?|agent_endings"),
    "hosts": (r"src/harbortrainer/bundled/hosts/|scripts/start_host", r"hosts(_refused)?|ray_cluster"),
    "docs": (r"docs/|mkdocs|[A-Z]+\.md", r"tutorials|site"),
    "server": (
        r"server/|scripts/(gpu/|lib/server|\w+_skyrl_tx)",
        r"(server|vllm|gpu|sampler)_\w+|base_models|exact_scores|tensor_parallel|saved_weights",
    ),
}
# concerns each part
SHARED = re.compile(
    r"tests/(.+(?<!\.py|\.md)$|conftest|\w+/conftest)|models/|requirements|pyproject|run_tests|scripts/(check|setup)|\.github/"
    r"|src/harbortrainer/policy/quick_import\.py"  # which the server reads
)
# tests that compare all parts with one another, and pages with them
ALWAYS = re.compile(r"tests/unit/test_(docs|readme|release|extending|metrics_documented|floors|parts|groups)\.py")


def part_of(file: str) -> str:
    """The part that a file of the repository belongs to, or every one."""
    test = re.fullmatch(r"tests/(unit|integration|conformance)/test_(\w+)\.py", file)
    if test and test[1] == "conformance":
        return "server"
    for part, (files, tests) in PARTS.items():
        if re.fullmatch(tests, test[2]) if test else re.match(files, file):
            return part
    return EVERY if SHARED.match(file) else CORE


def concerned(test: str, changed: frozenset[str]) -> bool:
    """Whether a test file is to run: its part, itself, or what it imports of tests/ has changed."""
    parts = {part_of(file) for file in changed if not file.startswith("tests/") or SHARED.match(file)}
    return bool(ALWAYS.match(test) or {EVERY, part_of(test)} & parts) or not changed.isdisjoint(_with_imports(test))


def changed_since(commit: str, root: Path) -> frozenset[str]:
    """Files that differ from those of a commit, committed or not. Raises ValueError where git knows no such commit."""
    files: set[str] = set()
    for asked in (("diff", "--name-only", commit, "--"), ("ls-files", "--others", "--exclude-standard")):
        done = subprocess.run(["git", *asked], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"--since={commit}: {done.stderr.strip().splitlines()[0]}; name a commit or a branch")
        files |= {*done.stdout.splitlines()}
    return frozenset(files)


@cache
def _with_imports(file: str) -> frozenset[str]:
    """The file, and those of tests/ that it imports, directly or not."""
    found, left = set[str](), [Path(file)]
    while left:
        one = left.pop()
        found.add(str(one))
        for node in ast.walk(ast.parse(one.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("tests")):
                module = (one.parent if node.level else Path()) / (node.module or "").replace(".", "/")
                named = {module.with_suffix(".py"), *(module / f"{name.name}.py" for name in node.names)}
                left += [name for name in named if str(name) not in found and name.is_file()]
    return frozenset(found)


def chosen(tests: Iterable[str], commit: str, root: Path) -> set[str]:
    """Those of the test files that concern what has changed since the commit."""
    changed = changed_since(commit, root)
    return {test for test in tests if concerned(test, changed)}
