"""The agent's terminal, against one that is fake: what is typed, pasted, waited for, and how it ends."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harbortrainer.venues.harbor.terminal import EXEC_MARGIN_SEC, SCROLLBACK_LINES, Pane, TypedStep, turn_script
from tests.support.scripted_agent import DONE, Rig, answer


@pytest.mark.parametrize(
    "said", ["no server running on /tmp/tmux-0/default", "can't find session: terminus-2", "error connecting to /tmp/x"]
)
async def test_a_shell_that_the_policy_ended_is_no_error(tmp_path: Path, said: str) -> None:
    ended = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal ended
        if "has-session" in command and ended:
            return 0, "up\ngone"
        ended = ended or "'exit\n'" in command
        return (1, said) if ended else (0, "40\n$ ")

    rig = Rig(tmp_path, [answer("exit\n", "ls\n", "ls\n"), DONE], reply)
    assert await rig.run() == "session_ended"
    assert len(rig.llm.turns) == 1 and len(rig.typed) == 1


@pytest.mark.parametrize("answer_of_the_container", [(137, ""), (1, "container is not running"), (0, "")])
async def test_a_terminal_that_ended_with_its_container_is_the_infrastructures(
    tmp_path: Path, answer_of_the_container: tuple[int, str]
) -> None:
    stopped = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal stopped
        if "has-session" in command and stopped:
            return answer_of_the_container
        stopped = stopped or "send-keys" in command
        return (1, "no server running on /tmp/tmux-0/default") if stopped else (0, "40\n$ ")

    with pytest.raises(RuntimeError, match="no server running"):
        await Rig(tmp_path, [answer("ls\n")], reply).run()


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


@pytest.mark.parametrize("failing", ["send-keys", "capture-pane -p -S"])
async def test_a_failure_without_a_word_is_the_policys_where_only_tmux_is_gone(tmp_path: Path, failing: str) -> None:
    killed = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal killed
        killed = killed or "send-keys" in command
        if killed and failing in command:
            return 137, ""
        return (0, "up\ngone") if "has-session" in command else (0, "40\n$ ")

    assert await Rig(tmp_path, [answer("kill -9 -1\n"), DONE], reply).run() == "session_ended"


async def test_terminal_is_bounded_and_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [DONE, DONE])
    await rig.run()
    start = rig.environment.commands[0]
    assert "new-session" in start and "head -c" in start and "cursor_x" in start and "cat >" not in start
    assert any(f"-S -{SCROLLBACK_LINES}" in command for command in rig.environment.commands)


async def test_tmux_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    installed = False

    def reply(command: str) -> tuple[int, str]:
        nonlocal installed
        if "apt-get install" in command:
            installed = True
        return (127, "tmux: not found") if "tmux" in command and not installed else (0, "40\n$ ")

    rig = Rig(tmp_path, [DONE, DONE], reply)
    assert await rig.run() == "done" and installed


@pytest.mark.parametrize("keys", ["true\n", ""], ids=["a-command", "only-waiting"])
def test_a_shell_that_has_ended_ends_the_wait(keys: str) -> None:
    """Also one that is still listed, because its parent, tmux in a trial, has not taken its exit status."""
    shell = subprocess.Popen(["sleep", "0.3"])
    script = turn_script([TypedStep(keys, 1000)], lambda keys: "true", "", Pane(shell.pid, os.getpid(), "/dev/null"))
    subprocess.run(["bash", "-c", script], timeout=500, check=True)
    assert os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "the shell was waited for"
    shell.wait()
