"""The conformance tests against a server that runs."""

import os
import subprocess
import sys

from tests.conftest import ROOT


def conforms(url: str, *flags: str) -> None:
    """Fails with the end of pytest's output unless all pass. `flags`: more of pytest's."""
    env = os.environ | {"TINKER_CONFORMANCE_URL": url}
    command = [sys.executable, "-m", "pytest", "tests/conformance", "-q", "-o", "addopts=", *flags]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stdout[-5000:]
