"""A trainer that is not root grades as one that is: its verifications are watched from a helper container."""

import json
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
from tests.support.quiet_attacks import HONEST, QUIET, quiet_task, serving
from tests.support.system_attacks import ATTACKS
from tests.support.unseen_attacks import SCRATCH, UNSEEN, unseen_task
from tests.support.unseen_attacks import serving as unseen_serving
from tests.support.verified_task import attacked_task

pytestmark = pytest.mark.usefixtures("docker_ready")
AT_ONCE = 3
TRIALS = f"""import asyncio, json, sys
from pathlib import Path
from tests.support.plain_container import product_trial
places = asyncio.Semaphore({AT_ONCE})
async def reward(task, script):
    async with places:
        return (await product_trial(Path(task), script)).reward
async def rewards(scripts):
    return await asyncio.gather(*(reward(task, script) for task, script in scripts.items()))
print("rewards", json.dumps(asyncio.run(rewards(json.load(sys.stdin)))))
"""
ODD = ATTACKS["pth-with-an-odd-name"]
SERVICES = ("kills-the-checker", "rewrites-the-verdict", "deletes")
NO_FILES = ("a-computed-name", "a-datagram", "a-size")
EARN_NOTHING = (*SERVICES, *NO_FILES, "odd-solved", "odd-unsolved")
HONEST_ONES = ("honest service", "honest file")


@pytest.fixture(scope="module")
def rewards(docker_ready: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float | None]:
    """Of trials of that user, side by side: of services, of what no opened file shows, of a hook with an odd name."""
    own = tmp_path_factory.mktemp("own")
    scripts = {str(quiet_task(own / name)): serving(QUIET[name]) for name in SERVICES}
    scripts |= {str(unseen_task(own / name)): unseen_serving(UNSEEN[name]) for name in NO_FILES}
    scripts |= {str(attacked_task(own / name / "task", way=ODD.way)): ODD.script for name in EARN_NOTHING[-2:]}
    shutil.rmtree(own / "odd-unsolved" / "task" / "solution")
    scripts |= {str(quiet_task(own / HONEST_ONES[0])): serving(HONEST)}
    scripts |= {str(unseen_task(own / HONEST_ONES[1])): unseen_serving(SCRATCH)}
    subprocess.run(["chown", "-R", "65534:65534", str(own)], check=True)
    os.chmod(own.parent, 0o755)
    env = os.environ | {"XDG_CACHE_HOME": str(own / "cache"), "HOME": str(own), "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    words = [*another_user(), sys.executable, "-c", TRIALS]
    given = json.dumps(scripts)
    ended = subprocess.run(words, input=given, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be watched" not in ended.stderr
    found = json.loads(ended.stdout.split("rewards ")[-1])
    return dict(zip((*EARN_NOTHING, *HONEST_ONES), found, strict=True))


def test_attacks_earn_nothing(rewards: dict[str, float | None]) -> None:
    earned = {name: rewards[name] for name in EARN_NOTHING if rewards[name]}
    assert earned == {} and [rewards[name] for name in EARN_NOTHING[-2:]] == [0, 0]


def test_honest_work_earns_its_reward(rewards: dict[str, float | None]) -> None:
    assert [rewards[name] for name in HONEST_ONES] == [1, 1]


def test_a_container_in_which_dockers_own_commands_are_stopped_is_removed(tmp_path: Path) -> None:
    code = "from harbortrainer.docker.keeping.cleaning import reap; reap()"
    env = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}/src"}
    with stopping_container(run := a_run("test-stops")):
        subprocess.run([*another_user(), sys.executable, "-c", code], env=env, cwd="/", check=True, timeout=60)
        assert containers(run) == []


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
