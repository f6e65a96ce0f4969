"""What `tasks check` finds of tasks without containers."""

import json
from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from harbortrainer.qualify.findings import Severity
from harbortrainer.qualify.static import judge_dead, static_findings
from tests.support.task_folder import BASE, write_task


@pytest.mark.parametrize(
    ("lines", "lacking"),
    [
        ("COPY here.txt /app/\n", ""),
        ("COPY . /app\nADD https://x.example/y /y\nCOPY --from=a /z /z\nCOPY $X *.tar /w/\nCOPY <<EOF /f\nEOF\n", ""),
        ("COPY --chown=1:1 here.txt \\\n  gone.txt /app/\n", "gone.txt"),
        ('ADD ["gone dir", "/app/"]\n', "gone dir"),
        ("COPY /here.txt sub/gone /app/\n", "sub/gone"),
    ],
)
def test_files_that_a_dockerfile_lacks(lines: str, lacking: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "one", dockerfile=BASE + lines, files={"environment/here.txt": "x"})
    assert [(one.kind, one.level) for one in static_findings(task)] == [("build", Severity.ERROR)] * bool(lacking)
    assert all(f"copies {lacking}," in one.detail for one in static_findings(task))


def test_tests_that_python_cannot_read_make_no_task_bad(tmp_path: Path) -> None:
    task = write_task(tmp_path / "one", files={"tests/test_it.py": "def f(:\n", "tests/test_ok.py": "x = 1\n"})
    (found,) = static_findings(task)
    assert found.level is Severity.WARNING and found.detail == "tests/test_it.py: invalid syntax in line 1"


@pytest.mark.parametrize(
    ("output", "dead"),
    [
        ("ERROR collecting test_outputs.py\nE   ModuleNotFoundError: No module named 'redis'\n", True),
        ("/usr/bin/python3: No module named pytest\n", True),
        ("/tests/test.sh: line 3: uvx: command not found\n", True),
        ("FAILED test_outputs.py::test_file - AssertionError\n1 failed in 0.02s\n", False),
        ("", False),
    ],
)
def test_a_verifier_in_which_no_test_ran_may_be_dead(output: str, dead: bool) -> None:
    assert [one.level for one in judge_dead(output)] == [Severity.WARNING] * dead


def test_what_is_not_in_the_sample_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harbortrainer.qualify import check

    asked = list[Path]()

    async def trials(paths: list[Path], *_: object) -> list[object]:
        asked.extend(paths)
        return [check.read(path) for path in paths]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(check, "_qualify", trials)
    for name in "abcde":
        lines = "COPY gone /\n" if name == "a" else f"RUN echo {name}\n"
        write_task(tmp_path / "set" / name, dockerfile=BASE + lines, files={"instruction.md": f"Do {name * 9}.\n"})
    assert main(["tasks", "check", str(tmp_path / "set"), "sample=2", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert len(asked) == 2 and [row["verdict"] for row in rows] == ["bad", *["unproven"] * 4]
    read = [row["name"] for row in rows if any(one["kind"] == "not checked: trials" for one in row["findings"])]
    assert sorted([*read, *[path.name for path in asked]]) == [*"abcde"]
