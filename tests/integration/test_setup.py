"""scripts/setup.sh on this machine: quick when nothing is missing, plain when it cannot go on."""

import re
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_script, succeed

SETUP = "scripts/setup.sh"
pytestmark = pytest.mark.disk  # uv links files from its cache


@pytest.fixture
def copied_scripts(tmp_path: Path) -> Path:
    """A repository of scripts and lock files only, where nothing is set up yet."""
    succeed("cp", "-r", "scripts", "requirements.lock", tmp_path)
    return tmp_path


def path_without(folder: Path, *missing: str) -> str:
    """A PATH with the machine's programs in it, except those named."""
    folder.mkdir()
    for source in (Path("/usr/bin"), Path("/usr/sbin")):
        for program in source.iterdir():
            link = folder / program.name
            if program.name not in missing and not link.exists():
                link.symlink_to(program)
    return str(folder)


def test_quick_when_nothing_is_missing(docker_ready: str) -> None:
    succeed(SETUP, "--all", timeout_sec=900)
    began = time.monotonic()
    output = succeed(SETUP, "--all")
    assert time.monotonic() - began < 60  # nothing is installed, compiled or made
    assert output == ""


def test_unknown_option() -> None:
    done = run_script(SETUP, "--everything")
    assert done.returncode == 1
    assert done.stdout.startswith("error: unknown option '--everything'; one of --dev ")


def test_an_unknown_agent_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for name in ("codx", "tools.in", ""):
        done = run_script("scripts/agents/pack", tmp_path / "pack", "codex", name)
        assert done.returncode == 1 and not (tmp_path / "pack").exists()
        assert f"error: unknown agent '{name}'; one of mini-swe-agent codex opencode" in done.stdout


@pytest.mark.parametrize(
    ("option", "agents"), [("--agents", "mini-swe-agent"), ("--agents=codex,opencode", "codex opencode")]
)
def test_the_agents_that_are_named_are_packed(copied_scripts: Path, option: str, agents: str) -> None:
    pack = copied_scripts / "scripts" / "agents" / "pack"
    pack.write_text('#!/bin/sh\necho "packs $@"\n')
    assert succeed(copied_scripts / SETUP, option) == f"packs {copied_scripts}/.state/agents {agents}\n"


def test_uv_is_fetched_where_there_is_none(copied_scripts: Path, tmp_path: Path) -> None:
    path = path_without(tmp_path / "bin", "uv")
    (tmp_path / "home").mkdir()
    call = "source scripts/lib/common.sh; source scripts/lib/python.sh; ensure_uv; $UV --version"
    output = succeed("bash", "-c", f"cd {copied_scripts}; {call}", env={"PATH": path, "HOME": str(tmp_path / "home")})
    assert "setup: installing uv into .state/uv" in output
    assert (copied_scripts / ".state" / "uv" / "bin" / "uv").exists()
    (version,) = re.findall(r"^UV_VERSION=(\S+)", (ROOT / "scripts" / "lib" / "python.sh").read_text(), re.MULTILINE)
    assert f"uv {version} " in output, "not whatever is the newest today"


def test_another_lock_is_installed_again(copied_scripts: Path) -> None:
    lock = copied_scripts / "requirements.lock"
    lock.write_text((ROOT / "requirements.lock").read_text().split("\naiohttp==")[0] + "\n")  # its first package alone
    call = "source scripts/lib/common.sh; source scripts/lib/python.sh; ensure_env trainer .venv requirements.lock"
    install = ("bash", "-c", f"cd {copied_scripts}; {call}")
    assert "trainer environment ready" in succeed(*install)
    assert succeed(*install) == ""
    lock.write_text(lock.read_text() + "# changed\n")
    assert "installing requirements.lock" in succeed(*install)


def test_docker_that_does_not_answer(copied_scripts: Path) -> None:
    done = run_script(copied_scripts / SETUP, "--docker", env={"DOCKER_HOST": "tcp://127.0.0.1:1"})
    assert done.returncode == 1
    assert (
        done.stdout
        == "error: no Docker engine answers at DOCKER_HOST=tcp://127.0.0.1:1; start it, or unset DOCKER_HOST\n"
    )
