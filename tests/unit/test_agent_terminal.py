"""The agent's terminal, against one that is fake: what is typed, pasted, waited for, and how it ends."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harbortrainer.venues.harbor.terminal import EXEC_MARGIN_SEC, Pane, TypedStep, turn_script
from tests.support.scripted_agent import DONE, Rig, answer


async def test_keys_that_an_old_tmux_refuses_are_pasted_and_the_rest_goes_on(tmp_path: Path) -> None:
    def reply(command: str) -> tuple[int, str]:
        if "z" * 5000 in command:
            return 1, "failed 1\ncommand too long"
        return 0, "40\n$ "

    rig = Rig(tmp_path, [answer("first\n", "z" * 5000, "last\n"), DONE, DONE], reply, max_tokens=9000)
    assert await rig.run() == "done"
    refused, *pasting, last = [c for c in rig.environment.commands if re.search("first|paste|base64|last", c)]
    assert "first" in refused and "load-buffer" in "".join(pasting)
    assert "last" in last and "first" not in last


async def test_keys_beyond_a_command_line_are_pasted_in_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("first\n", "z" * 20000, "last\n"), DONE, DONE], max_tokens=30000, context_limit=90000)
    assert await rig.run() == "done"
    order = [c for c in rig.environment.commands if re.search("first|paste-buffer|last", c)]
    assert ["first" in c for c in order] == [True, False, False] and "last" in order[-1]


async def test_every_command_of_the_terminal_has_a_limit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [answer("a\n", "b\n", wait=5), DONE, DONE])
    assert await rig.run() == "done"
    assert all(limit for limit in rig.environment.limits)
    assert max(rig.environment.limits) == 10 + EXEC_MARGIN_SEC


@pytest.mark.parametrize(
    ("failing", "said", "words"),
    [
        ("capture-pane", "Cannot connect to the Docker daemon", "Docker daemon"),
        ("send-keys", "failed 0\ncontainer is not running", r"typing .* failed with 1: failed 0\scontainer"),
    ],
)
async def test_a_terminal_that_cannot_be_used_is_the_infrastructures(
    tmp_path: Path, failing: str, said: str, words: str
) -> None:
    def reply(command: str) -> tuple[int, str]:
        return (1, said) if failing in command else (0, "up\nalive" if failing == "capture-pane" else "40\n$ ")

    with pytest.raises(RuntimeError, match=words):
        await Rig(tmp_path, [answer("ls\n")], reply).run()


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (127, "bash: line 9: tmux: command not found", "the image has none, and it could not be installed"),
        (1, "17 16 /dev/pts/0", "its shell ended at once"),
        (1, "no suitable socket path", "no suitable socket path"),
    ],
)
async def test_a_terminal_that_does_not_start_says_why(tmp_path: Path, code: int, said: str, words: str) -> None:
    def reply(command: str) -> tuple[int, str]:
        return (code, said) if "new-session" in command else (0, "")

    with pytest.raises(RuntimeError, match=f"tmux did not start: {words}"):
        await Rig(tmp_path, [], reply).run()


@pytest.mark.parametrize("keys", ["true\n", ""], ids=["a-command", "only-waiting"])
def test_a_shell_that_has_ended_ends_the_wait(keys: str) -> None:
    """Also one that is still listed, because its parent, tmux in a trial, has not taken its exit status."""
    shell = subprocess.Popen(["sleep", "0.3"])
    script = turn_script([TypedStep(keys, 1000)], lambda keys: "true", "", Pane(shell.pid, os.getpid(), "/dev/null"))
    subprocess.run(["bash", "-c", script], timeout=500, check=True)
    assert os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "the shell was waited for"
    shell.wait()
