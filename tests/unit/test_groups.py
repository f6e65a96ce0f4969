"""The division of the integration tests between processes (tests/conftest.py)."""

import re
from pathlib import Path

from tests.conftest import _group

# Whatever starts or ends a run, an evaluation or a qualification on Docker removes what dead processes have left.
CLEANS_UP = re.compile(
    r'\b(?:reap|tidy|qualify_all)\(|"src\.(?:train|evaluate)"|tasks", "(?:check|build)"|test_train import'
)


def test_files_that_clean_up_the_whole_daemon_run_in_one_process() -> None:
    """One of them leaves the containers of a killed process to find them; another one would take them first."""
    files = sorted(Path("tests/integration").glob("test_*.py"))
    cleaning = [str(file) for file in files if CLEANS_UP.search(file.read_text())]
    assert len(cleaning) >= 8 and {file: _group(file) for file in cleaning} == dict.fromkeys(cleaning, "daemon")
