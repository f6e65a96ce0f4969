"""A trainer that is not root grades as one that is: its verifications are watched from a helper container."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.another_user import another_user
from tests.support.quiet_attacks import HONEST, QUIET, Quiet, quiet_task, serving
from tests.support.unseen_attacks import SCRATCH, UNSEEN, Unseen, unseen_task
from tests.support.unseen_attacks import serving as unseen_serving

pytestmark = pytest.mark.usefixtures("docker_ready")
TRIAL = """import asyncio, sys
from pathlib import Path
from tests.support.plain_container import product_trial
print("reward", asyncio.run(product_trial(Path(sys.argv[1]), sys.stdin.read())).reward)
"""
QUIET_ONES = {"honest": HONEST} | {
    name: QUIET[name] for name in ("kills-the-checker", "rewrites-the-verdict", "deletes")
}
UNSEEN_ONES = {"honest": SCRATCH} | {name: UNSEEN[name] for name in ("a-computed-name", "a-datagram", "a-size")}


def reward(task: Path, script: str) -> str:
    shutil.copytree(task.parent, other := task.parent.parent / "other")
    subprocess.run(["chown", "-R", "65534:65534", str(other)], check=True)
    os.chmod(other.parent, 0o755)
    env = os.environ | {"XDG_CACHE_HOME": str(other / "cache"), "HOME": str(other), "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    words = [*another_user(), sys.executable, "-c", TRIAL, str(other / task.name)]
    ended = subprocess.run(words, input=script, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be watched" not in ended.stderr
    return ended.stdout.split("reward ")[-1].strip()


@pytest.mark.parametrize("name", QUIET_ONES)
def test_services_are_watched(tmp_path: Path, name: str) -> None:
    one: Quiet = QUIET_ONES[name]
    found = reward(quiet_task(tmp_path / "own"), serving(one))
    assert found == "1.0" if name == "honest" else found in ("0.0", "None")


@pytest.mark.parametrize("name", UNSEEN_ONES)
def test_what_no_opened_file_shows_counts(tmp_path: Path, name: str) -> None:
    one: Unseen = UNSEEN_ONES[name]
    found = reward(unseen_task(tmp_path / "own"), unseen_serving(one))
    assert found == "1.0" if name == "honest" else found in ("0.0", "None")
