"""A trainer that is not root grades as one that is: its verifications are watched from a helper container."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from harbortrainer.docker.integrity import privileged
from tests.conftest import ROOT
from tests.support.another_user import another_user
from tests.support.docker_parts import a_run, containers, remove_run, stopping_container
from tests.support.quiet_attacks import HONEST, QUIET, Quiet, quiet_task, serving
from tests.support.system_attacks import ATTACKS
from tests.support.unseen_attacks import SCRATCH, UNSEEN, Unseen, unseen_task
from tests.support.unseen_attacks import serving as unseen_serving
from tests.support.verified_task import attacked_task

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


def test_a_container_in_which_dockers_own_commands_are_stopped_is_removed(tmp_path: Path) -> None:
    code = "from harbortrainer.docker.keeping.cleaning import reap; reap()"
    env = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}/src"}
    with stopping_container(run := a_run("test-stops")):
        subprocess.run([*another_user(), sys.executable, "-c", code], env=env, cwd="/", check=True, timeout=60)
        assert containers(run) == []


@pytest.mark.parametrize("solved", [True, False])
def test_a_name_that_docker_diff_cannot_write_is_undone(tmp_path: Path, solved: bool) -> None:
    attack = ATTACKS["pth-with-an-odd-name"]
    task = attacked_task(tmp_path / "own" / "task", way=attack.way)
    if not solved:
        shutil.rmtree(task / "solution")
    assert reward(task, attack.script) == "0.0"


def test_the_helper_runs_a_python_whose_library_only_the_machine_finds(tmp_path: Path) -> None:
    """As with one in /opt that is named in /etc/ld.so.conf: the helper has no ld.so.cache."""
    run, library = a_run("test-helper"), f"{sysconfig.get_config_var('LIBDIR')}\0".encode()
    program = Path(sys.executable).resolve().read_bytes()
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or library not in program:
        pytest.skip("this Python has its library in itself, or where every program looks")
    (tmp_path / "python").write_bytes(program.replace(library, bytes(len(library))))
    (tmp_path / "python").chmod(0o755)
    helper = privileged._InContainer([str(tmp_path / "python"), "-I", "-S", "-c", "print(6 * 7)"], run)
    try:
        assert b"".join(helper.chunks()) == b"42\n"
    finally:
        helper.close()
        remove_run(run)
