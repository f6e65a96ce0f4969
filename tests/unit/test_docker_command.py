"""Harbor's small commands, rewritten so that they start fewer processes: the same effect in every shell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harbortrainer.docker.command import IN_SHELL, cheap, making

SHELLS = [name for name in ("bash", "dash", "sh") if shutil.which(name)]
HARBORS = "mkdir -p {0}/logs/agent {0}/logs/verifier && chmod 777 {0}/logs/agent {0}/logs/verifier"


def run(shell: str, command: str) -> int:
    return subprocess.run([shell, "-c", f"umask 022; {command}"], check=False).returncode


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_removal_removes_what_is_there_and_links_to_nothing(shell: str, tmp_path: Path) -> None:
    link, spaced = tmp_path / "link", tmp_path / "a name"
    link.symlink_to("nothing")
    spaced.touch()
    command = f"rm -f -- {tmp_path}/none {link} '{spaced}'"
    assert cheap(command).startswith(f"{IN_SHELL}\n") and run(shell, cheap(command)) == 0
    assert list(tmp_path.iterdir()) == []
    assert run(shell, f"PATH=/nowhere; {cheap(command)}") == 0  # no process: nothing is there any more
    (tmp_path / "folder").mkdir()
    assert run(shell, f"{cheap(f'rm -f -- {tmp_path}/folder')} 2>/dev/null") != 0


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("before", ["", "logs", "logs/agent", "logs/verifier"])
def test_folders_are_made_as_harbor_makes_them(shell: str, before: str, tmp_path: Path) -> None:
    for name in ("harbors", "ours"):
        (tmp_path / name / before).mkdir(parents=True, mode=0o755)
    ours = [f"{tmp_path}/ours/logs/agent", f"{tmp_path}/ours/logs/verifier"]
    assert run(shell, HARBORS.format(f"{tmp_path}/harbors")) == 0
    assert run(shell, making(ours, HARBORS.format(f"{tmp_path}/ours"))) == 0
    assert modes(tmp_path / "ours") == modes(tmp_path / "harbors")


def test_a_folder_within_another_one_is_made_by_harbors_command() -> None:
    assert making(["/a/b", "/a"], "harbors") == "harbors"
