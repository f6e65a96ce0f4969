"""What `tasks check` finds of tasks without containers."""

import json
import logging
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


ELSEWHERE = "harbor.environments.docker.docker:DockerEnvironment"  # its images are not built before trials


def test_what_is_not_in_the_sample_is_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.NOTSET, logger="harbortrainer.harbor")  # a check changes it for its process
    for name in "abcde":
        files = {"instruction.md": f"Do {name * 9}.\n"}
        write_task(tmp_path / "set" / name, dockerfile=f"{BASE}COPY gone-{name} /\n", files=files)
    given = [str(tmp_path / "set"), "sample=2", f"environment_type={ELSEWHERE}", "--json"]  # none comes to a trial
    assert main(["tasks", "check", *given]) == 1
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert [row["verdict"] for row in rows] == ["bad"] * 5
    assert sum(any(one["kind"] == "not checked: trials" for one in row["findings"]) for row in rows) == 3
