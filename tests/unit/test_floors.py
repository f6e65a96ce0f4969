"""What the syntax trees of the package show: its floors (docs/modules.md), long calls, and how docstrings begin."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.floors import FLOORS, PACKAGE
from tests.conftest import ROOT

# What runs trials in containers: only these modules and packages may name Docker or Harbor, and import from them.
ROOMS = {
    "bundled.agents.installed", "bundled.agents.listener", "bundled.agents.program",
    "bundled.agents.programs", "bundled.agents.relay", "bundled.agents.session", "bundled.hosts.afterwards",
    "bundled.hosts.copies", "bundled.hosts.facts", "bundled.hosts.messages", "bundled.hosts.node",
    "bundled.hosts.ray_cluster", "bundled.hosts.survey", "docker", "doctor", "harbor", "policy.tinker_llm", "qualify",
    "tasks.fetch", "tasks.folder_identity", "tasks.folders", "venues",
}  # fmt: skip
# Names that users or libraries have given, once or twice each; none of these imports one of the rooms.
QUOTES = {
    "__init__": "Harbor and LiteLLM read these variables",
    "cli.main": "what commands do",
    "commands": "what commands do",
    "config": "values of environment_type, sources of tasks_dir",
    "sft.jobs": "the format of its job folders",
    "sft_config": "the same",
    "tasks.task": "the venue of tasks in old run directories",
    "watch.capture": "a logger",
}
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Every import of one module of the package in `folder` by another, those inside functions included."""
    modules = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    for name, path in modules.items():
        for module in seen(path.read_text()).named:
            head, _, rest = module.partition(".")
            if head == folder.name and name != "__init__":  # which shows the face, when it is asked for
                yield name, rest if rest in modules else rest.rpartition(".")[0] or rest


class Seen(NamedTuple):
    """What the rules ask of a module's text: to read its syntax tree takes most of their time."""

    named: list[str]
    long_calls: list[str]
    splats: list[str]
    documented: list[tuple[str, bool, str]]


@cache
def seen(text: str) -> Seen:
    nodes = list(ast.walk(ast.parse(text)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Seen(named(nodes), long_calls(calls), splats(calls), documented(nodes))


def named(nodes: list[ast.AST]) -> list[str]:
    """What a module with these nodes imports."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


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
    assert {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__", "py"} == FLOOR.keys()
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


MOST_POSITIONAL = 6


def long_calls(calls: list[ast.Call]) -> list[str]:
    """Calls with more arguments in order than a reader can count; words of a command line do not count."""
    given = [(call, [one for one in call.args if not isinstance(one, ast.Constant | ast.JoinedStr)]) for call in calls]
    return [f"{ast.unparse(call.func)}, line {call.lineno}" for call, args in given if len(args) > MOST_POSITIONAL]


def test_calls_name_what_they_give_behind_the_sixth_argument() -> None:
    found = {str(path.relative_to(PACKAGE)): seen(path.read_text()).long_calls for path in PACKAGE.rglob("*.py")}
    assert {path: calls for path, calls in found.items() if calls} == {}
    assert seen("f(a, b, c, d, e, g, h)\nf(a, b, c, d, e, g, h=1)").long_calls == ["f, line 1"]


NAMES = re.compile(r"\b(?:docker|harbor)(?!trainer)|[a-z_](?:docker|harbor)\b(?!trainer)", re.IGNORECASE)


def naming(folder: Path) -> set[str]:
    """Modules outside ROOMS that name Docker or Harbor."""
    texts = {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text() for path in folder.rglob("*.py")
    }
    return {name for name, text in texts.items() if not {name, room(name)} & ROOMS and NAMES.search(text)}


def test_only_a_venues_rooms_name_docker_or_harbor() -> None:
    assert naming(PACKAGE) == QUOTES.keys()
    rooms = {one for one, other in imported(PACKAGE) if room(other) in ("docker", "harbor")}
    assert {one for one in rooms if not {one, room(one)} & ROOMS} == set()


def test_one_module_alone_names_ray() -> None:
    """It is an optional package: slow to import, and of another machine's version."""
    named = re.compile(r"import ray\b|from ray\b|import_module\(f?[\"']ray")
    paths = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if named.search(path.read_text())]
    assert paths == ["bundled/hosts/ray_cluster.py"]


def plugged_in() -> dict[str, str]:
    """The module of each part that this package finds by an entry point."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {
        value.partition(":")[0].removeprefix("harbortrainer."): f"{group}: {name}"
        for group, entries in groups.items()
        for name, value in entries.items()
    }


def naming_plugins(folder: Path, parts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Modules outside a part's own package that import its module, or have its path in a text."""
    found = {(one, other) for one, other in imported(folder) if other in parts}
    for path in folder.rglob("*.py"):
        name, text = ".".join(path.relative_to(folder).with_suffix("").parts), path.read_text()
        found |= {(name, part) for part in parts if f'"harbortrainer.{part}' in text}
    return {(one, other) for one, other in found if one.rpartition(".")[0] != other.rpartition(".")[0]}


def test_no_module_names_a_part_that_is_found_by_its_entry_point() -> None:
    assert naming_plugins(PACKAGE, plugged_in()) == {
        ("bundled.hosts.survey", "venues.harbor.venue"),  # each host runs trials as one machine does
        ("bundled.hosts.ray_cluster", "venues.harbor.venue"),
    }
    texts = {path: path.read_text() for path in (PACKAGE / "cli").rglob("*.py")}
    assert [path.name for path, text in texts.items() if '"tau' in text or "codex" in text] == []


def splats(calls: list[ast.Call]) -> list[str]:
    """Objects made from a tuple that a variable holds: a reader, and pyright, cannot see which field gets what."""
    found: list[str] = []
    for call in calls:
        stars = [one.value for one in call.args if isinstance(one, ast.Starred)]
        if any(isinstance(one, ast.Name) and one.id != "args" for one in stars):
            made = ast.unparse(call.func)
            found += [f"{made}, line {call.lineno}"] if re.match(r"_?[A-Z][a-z]", made.rpartition(".")[2]) else []
    return found


def test_no_object_is_made_from_a_tuple_of_its_fields() -> None:
    found = {str(path.relative_to(PACKAGE)): seen(path.read_text()).splats for path in PACKAGE.rglob("*.py")}
    assert {path: calls for path, calls in found.items() if calls} == {}
    assert seen("Point(1, *rest)\nf(*rest)\nPoint(*map(int, words))\nPoint(*args)").splats == ["Point, line 1"]


_VERBS = """
    Add Announce Answer Append Apply Ask Await Become Begin Bound Build Cache Call Cancel Change Check Clean Close
    Collect Complete Confirm Connect Copy Count Create Cut Delete Do Draw Drop End Erase Escape Estimate Evaluate Exit
    Fetch Fine-tune Follow Forget Free Get Give Hand Identify Import Install Join Judge Keep Kill Lend Let Listen Load
    Lock Log Look Make Map Mark Measure Move Note Open Parse Prepare Print Probe Publish Push Put Raise Raises Read
    Record Refuse Release Remember Remove Replace Report Restore Return Run Sample Save Say Scale Send Serve Set Show
    Shuffle Sort Split Start Take Tell Tidy Train Try Type Undo Unload Wait Warn Watch Write Yield fsync
"""
_NO_NOUNS = "As Called How In It Its Like Never Of This Where Which Who Why Whether"
VERBS, NO_NOUN = frozenset(_VERBS.split()), frozenset(_NO_NOUNS.split())
RELATIVE = re.compile(r"(?:^|`: )(?:those (?:that|of|whose)|what it|of one)\b", re.IGNORECASE)  # in place of a noun
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def documented(nodes: list[ast.AST]) -> list[tuple[str, bool, str]]:
    """Name, whether it is a class, and docstring of each definition but properties, which read as attributes."""
    return [
        (node.name, isinstance(node, ast.ClassDef), words)
        for node in nodes
        if isinstance(node, Definition)
        and (words := ast.get_docstring(node))
        and not any("prop" in ast.unparse(one) for one in node.decorator_list)
    ]


def wrong(text: str) -> list[str]:
    """Names whose docstrings begin otherwise. One that begins with a parameter explains parameters alone."""
    found: list[str] = []
    for name, is_class, words in seen(text).documented:
        first = re.split(r"[\s,.:;]", words)[0]
        if is_class:
            fault = first in NO_NOUN or words.startswith("`")
        else:
            fault = first not in VERBS and not words.startswith("`")
        if not name.startswith("_") and fault:
            found.append(f"{name}: {words.splitlines()[0]}")
    return found


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {str(path.relative_to(PACKAGE)): wrong(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_docstrings_define_by_nouns() -> None:
    """Those of private functions and classes too."""
    found = {
        str(path.relative_to(PACKAGE)): [
            words for *_, words in seen(path.read_text()).documented if RELATIVE.search(words)
        ]
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: words for path, words in found.items() if words} == {}


def test_the_rules_see_both_sides() -> None:
    good = 'def f():\n    """Return it."""\nclass A:\n    """A thing."""\ndef g(x):\n    """`x`: a number."""'
    bad = 'def f():\n    """The thing."""\nclass A:\n    """Of a run."""'
    assert wrong(good) == [] and wrong(bad) == ["f: The thing.", "A: Of a run."]
    assert RELATIVE.search("Those that wait.") and RELATIVE.search("`x`: those of others")
    assert not RELATIVE.search("Return what it is; `x`: a number of those that count")
