"""A trainer that is not root grades as one that is: its verifications are watched from a helper container."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from harbortrainer.docker.integrity import privileged
from tests.conftest import ROOT
from tests.support import quiet_attacks, unseen_attacks
from tests.support.another_user import another_user
from tests.support.docker_parts import a_run, containers, remove_run, stopping_container
from tests.support.idle_attacks import IDLE, idle, idle_task
from tests.support.quiet_attacks import QUIET, quiet_task
from tests.support.system_attacks import ATTACKS
from tests.support.tiers import first
from tests.support.unseen_attacks import SCRATCH, UNSEEN, unseen_task
from tests.support.verified_task import attacked_task

pytestmark = pytest.mark.usefixtures("docker_ready")
TRIALS = """import asyncio, json, sys
from pathlib import Path
from tests.support.plain_container import product_trials
cases = [(Path(task), script) for task, script in json.load(sys.stdin)]
print("rewards", json.dumps([trial.reward for trial in asyncio.run(product_trials(cases))]))
"""
QUIET_ONES = ("rewrites-the-verdict", "deletes")
UNSEEN_ONES = ("a-datagram", "a-computed-name")
IDLE_ONES = ("mq", "lock")
BY_DAY = ("an honest service", "rewrites-the-verdict", "an odd name")
ODD = ATTACKS["pth-with-an-odd-name"]  # a name that docker diff cannot write


def cases(folder: Path) -> dict[str, tuple[Path, str]]:
    """Tasks, each in a folder of its own, and scripts. Two do the work; the others act on their verification."""
    quiet = {"an honest service": quiet_attacks.HONEST} | {name: QUIET[name] for name in QUIET_ONES}
    unseen = {"honest work": SCRATCH} | {name: UNSEEN[name] for name in UNSEEN_ONES}
    odd = {name: attacked_task(folder / name / "task", way=ODD.way) for name in ("an odd name", "an odd name unsolved")}
    shutil.rmtree(odd["an odd name unsolved"] / "solution")
    return (
        {name: (quiet_task(folder / name), quiet_attacks.serving(one)) for name, one in quiet.items()}
        | {name: (unseen_task(folder / name), unseen_attacks.serving(one)) for name, one in unseen.items()}
        | {name: (task, ODD.script) for name, task in odd.items()}
        | {name: (idle_task(folder / name, name), idle(IDLE[name])) for name in IDLE_ONES}
    )


def rewards(own: Path, tried: Mapping[str, tuple[Path, str]]) -> dict[str, float | None]:
    """Of trials that another user's process runs, on a copy of the tasks in `own`."""
    other = shutil.copytree(own, own.parent / "other")
    subprocess.run(["chown", "-R", "65534:65534", str(other)], check=True)
    os.chmod(other.parent, 0o755)
    env = os.environ | {"XDG_CACHE_HOME": str(other / "cache"), "HOME": str(other), "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    given = json.dumps([(str(other / task.relative_to(own)), script) for task, script in tried.values()])
    words = [*another_user(), sys.executable, "-c", TRIALS]
    ended = subprocess.run(words, input=given, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "cannot be watched" not in ended.stderr
    return dict(zip(tried, json.loads(ended.stdout.split("rewards ")[-1]), strict=True))


@pytest.mark.parametrize("by_day", first(1, [True, False]))
def test_services_and_what_no_opened_file_shows_are_watched_and_odd_names_undone(tmp_path: Path, by_day: bool) -> None:
    every = cases(tmp_path / "own")
    found = rewards(tmp_path / "own", {name: every[name] for name in (BY_DAY if by_day else every)})
    honest = {"an honest service", "honest work"} & found.keys()
    assert {name for name, reward in found.items() if reward == 1} == honest, found
    assert set(found.values()) <= {0, 1, None}
    assert {found[name] for name in found if name.startswith("an odd name")} == {0}


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
