"""Which files pyright looks at again: those whose text, or that of what they import, is another one."""

import subprocess
from pathlib import Path

import pytest

from scripts.check_types import digests, imports, main

PATHS = ["", "src"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import p.a", {"src/p/__init__.py", "src/p/a.py"}),
        ("if x:\n    from p import (\n        a,  # why\n        b as c,\n    )", {"src/p/__init__.py", "src/p/a.py"}),
        ("from p.a import name", {"src/p/a.py"}),
        ("from p import *", {"src/p/__init__.py"}),
        ("from . import near", {"tests/unit/near.py"}),
        ("from ..far import name", {"tests/far.py"}),
        ("import near, json", {"tests/unit/near.py"}),
        ("x = 'imported from p'", set()),
    ],
)
def test_what_a_text_imports(text: str, found: set[str]) -> None:
    files = {"src/p/__init__.py", "src/p/a.py", "tests/far.py", "tests/unit/near.py"}
    assert files & {*imports("tests/unit/test_it.py", text, PATHS)} == found


def test_a_digest_is_of_all_that_a_file_imports_and_of_what_all_share() -> None:
    texts = {"a.py": "from b import x", "b.py": "from c import x\nimport a", "c.py": "x = 1", "d.py": "y = 1"}
    before = digests(texts, "settings", PATHS)
    assert digests(texts, "settings", PATHS) == before
    changed = digests({**texts, "c.py": "x = ''"}, "settings", PATHS)
    assert [file for file in texts if changed[file] == before[file]] == ["d.py"]
    gone = digests({file: text for file, text in texts.items() if file != "c.py"}, "settings", PATHS)
    assert [file for file in gone if gone[file] == before[file]] == ["d.py"]
    assert not {*before.values()} & {*digests(texts, "others", PATHS).values()}


def test_files_without_a_fault_are_not_looked_at_again(tmp_path: Path) -> None:
    settings = '[tool.pyright]\ninclude = ["src"]\nexclude = ["src/no"]\nextraPaths = ["src"]'
    texts = {"pyproject.toml": settings, "src/a.py": "import b", "src/b.py": "", "src/c.py": "", "src/no/d.py": ""}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def asked(status: int = 0) -> list[str]:
        (tmp_path / "asked").write_text("")
        assert main(["sh", "-c", f'echo "$@" >asked; exit {status}', "sh"], tmp_path) in (0, status)
        return (tmp_path / "asked").read_text().split()

    assert asked(1) == asked() == ["src/a.py", "src/b.py", "src/c.py"], "after a fault everything again"
    assert asked() == []
    (tmp_path / "src" / "b.py").write_text("x = 1")
    assert asked(1) == asked() == ["src/a.py", "src/b.py"]
    (tmp_path / "src" / "c.py").unlink()
    assert asked() == []
