"""Tests in forked processes: each runs once, a file's in one process, beside others; faults and crashes are told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# until() waits for what another process does; every test leaves its name
CONFTEST = """
import os, pathlib, time, pytest

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)

@pytest.fixture(autouse=True, scope="session")
def whole():
    with open("whole", "a") as file: print("begins", os.getpid(), file=file, flush=True)
    yield
    with open("whole", "a") as file: print("ends", os.getpid(), file=file, flush=True)

@pytest.fixture(autouse=True)
def named(request, tmp_path):
    with open("ran", "a") as file: print(os.getpid(), request.node.nodeid, tmp_path, file=file, flush=True)
"""
ONE = """
import pathlib
from conftest import until
def test_first():
    pathlib.Path("one").touch()
    until(pathlib.Path("two").exists)
def test_fails():
    print("said", "by one")
    assert False
def test_third(): ...
"""
TWO = """
import pathlib
from conftest import until
def test_first():
    pathlib.Path("two").touch()
    until(pathlib.Path("one").exists)
def test_second(): ...
"""


def run(folder: Path, *arguments: str, **files: str) -> tuple[int, str]:
    """Exit status and output of pytest with two processes."""
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        folder,
        "-p",
        "tests.support.forked",
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    with (folder / "said").open("w") as said:
        done = subprocess.run(
            [*command, "--forks", "2", *arguments, folder], cwd=folder, env=env, stdout=said, stderr=said, check=False
        )
    return done.returncode, (folder / "said").read_text()


def test_each_runs_once_beside_others_and_a_failure_is_shown(tmp_path: Path) -> None:
    status, said = run(tmp_path, test_one=ONE, test_two=TWO)
    assert (status, said.count("said by one"), "1 failed, 4 passed" in said) == (1, 1, True), said
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 5 == len({name for _, name, _ in ran}) == len({own for _, _, own in ran})
    assert len({pid for pid, _, _ in ran}) == 2 == len({(pid, name.partition("::")[0]) for pid, name, _ in ran})
    fixtures = (tmp_path / "whole").read_text().split()
    assert fixtures.count("begins") == fixtures.count("ends") == 2, "of the session: once in each process"


def test_a_process_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    status, said = run(tmp_path, test_one="import os\ndef test_one(): os._exit(0)", test_two="def test_two(): ...")
    assert status == pytest.ExitCode.TESTS_FAILED, said
    assert "a process of the tests ended with status 0 at test_one.py::test_one" in said
