"""Imports point down: the floors of the package, read from the syntax trees (docs/architecture.md draws them)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "harbortrainer"
FLOORS = [  # a module or package imports only what stands in a line above its own
    {"errors", "setting", "stats"},
    {"config", "durable"},
    {"harbor", "learning", "stopping"},
    {"cli", "docker", "policy", "tasks"},
    {"backend", "rollout", "run"},
    {"budget", "probe", "qualify", "report", "watch"},
    {"doctor", "training"},
    {"evaluation", "planning", "replay", "sft"},
    {"train"},
]
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Every import of one module of the package in `folder` by another, those inside functions included."""
    modules = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in found:
                head, _, rest = module.partition(".")
                if head == folder.name:
                    yield name, rest if rest in modules else rest.rpartition(".")[0] or rest


def room(module: str) -> str:
    return module.split(".")[0]


def arrows_up(folder: Path) -> list[str]:
    return sorted(
        f"{one} imports {other}"
        for one, other in imported(folder)
        if room(one) != room(other) and FLOOR[room(one)] <= FLOOR[room(other)]
    )


def circle(folder: Path) -> list[str]:
    """Modules that import one another, directly or by way of others; [] = none do."""
    needs: dict[str, set[str]] = {}
    for one, other in imported(folder):
        needs.setdefault(one, set()).add(other)
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    return sorted(needs)


def test_every_import_points_down() -> None:
    assert {room(one) for pair in imported(PACKAGE) for one in pair} <= FLOOR.keys()
    assert {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__"} == FLOOR.keys()
    assert arrows_up(PACKAGE) == []


def test_no_modules_import_one_another() -> None:
    assert circle(PACKAGE) == []


@pytest.fixture
def knotted(tmp_path: Path) -> Path:
    folder = tmp_path / "harbortrainer"
    texts = {
        "learning/a.py": "from harbortrainer.learning import b\nimport json",
        "learning/b.py": "def f():\n    from harbortrainer.learning.a import x",
        "stopping.py": "from harbortrainer.learning.b import f",
        "train.py": "import harbortrainer.stopping",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_knot_is_seen(knotted: Path) -> None:
    assert arrows_up(knotted) == ["stopping imports learning.b"]
    assert circle(knotted) == ["learning.a", "learning.b", "stopping", "train"]
