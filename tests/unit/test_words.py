"""How docstrings begin, read from the syntax trees: a function's with a verb, a class's with a noun."""

import ast
import re
from functools import cache

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "harbortrainer"
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


@cache
def documented(text: str) -> list[tuple[str, bool, str]]:
    """Name, whether it is a class, and docstring of each definition but properties, which read as attributes."""
    return [
        (node.name, isinstance(node, ast.ClassDef), words)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Definition)
        and (words := ast.get_docstring(node))
        and not any("prop" in ast.unparse(one) for one in node.decorator_list)
    ]


def wrong(text: str) -> list[str]:
    """Names whose docstrings begin otherwise. One that begins with a parameter explains parameters alone."""
    found: list[str] = []
    for name, is_class, words in documented(text):
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
        str(path.relative_to(PACKAGE)): [words for *_, words in documented(path.read_text()) if RELATIVE.search(words)]
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: words for path, words in found.items() if words} == {}


def test_the_rules_see_both_sides() -> None:
    good = 'def f():\n    """Return it."""\nclass A:\n    """A thing."""\ndef g(x):\n    """`x`: a number."""'
    bad = 'def f():\n    """The thing."""\nclass A:\n    """Of a run."""'
    assert wrong(good) == [] and wrong(bad) == ["f: The thing.", "A: Of a run."]
    assert RELATIVE.search("Those that wait.") and RELATIVE.search("`x`: those of others")
    assert not RELATIVE.search("Return what it is; `x`: a number of those that count")
