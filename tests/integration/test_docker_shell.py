"""Commands through the open shell of a real container."""

import asyncio
import hashlib
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from harbortrainer.docker.box import shell
from harbortrainer.docker.box.command import IN_SHELL, ShellCommand
from harbortrainer.docker.box.container import ContainerSpec, container_name, start_container
from harbortrainer.docker.box.shell import Shells
from harbortrainer.docker.daemon import call, remove_container
from harbortrainer.docker.images.image import task_image
from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.docker.keeping.ownership import labels


@pytest_asyncio.fixture
async def shells(docker_ready: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shells]:
    monkeypatch.setattr(shell, "KILL_WAIT_SEC", 300.0)  # after which it gives a shell up, and its command
    image = await task_image(Path("unused"), docker_ready)
    name = container_name("test-shell")
    await call(start_container, ContainerSpec(image, name, labels("test-shell"), pids_limit=128, cpus=1.0))
    opened = Shells(name)
    yield opened
    opened.close()
    await drain()
    await call(remove_container, name)


async def _until_gone(shells: Shells, process: str) -> None:
    """A process that was killed is listed until it was given a processor to end on."""
    async with asyncio.timeout(600):
        while process in (await shells.run("ps -eo args", user="root")).stdout.decode():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_streams_exit_code_user_directory_and_environment(shells: Shells) -> None:
    command = 'echo "$X"; pwd; id -un; echo bad >&2; exit 3'
    output = await shells.run(ShellCommand(command, "/tmp", {"X": "a 'b'\nü"}), user="nobody")
    assert output.stdout.decode() == "a 'b'\nü\n/tmp\nnobody\n"
    assert (output.stderr, output.return_code) == (b"bad\n", 3)


@pytest.mark.parametrize("size", [0, 1, 100_000, 2_000_000])
async def test_bytes_come_unchanged(shells: Shells, size: int) -> None:
    output = await shells.run(f"head -c {size} /dev/urandom | tee /tmp/bytes; sha256sum /tmp/bytes >&2")
    assert len(output.stdout) == size
    assert output.stderr.decode().split()[0] == hashlib.sha256(output.stdout).hexdigest()


@pytest.mark.parametrize("piece", ["x'\"$`\\ \n\t", "ü'\n"])
async def test_long_commands_come_unchanged(shells: Shells, piece: str) -> None:
    text = f"{5000 * piece}."
    for first_line in ("", f"{IN_SHELL}\n"):
        output = await shells.run(f"{first_line}printf %s {shlex.quote(text)}")
        assert output.stdout.decode() == text and not output.stderr


async def test_no_state_passes_from_command_to_command(shells: Shells) -> None:
    await shells.run("cd /tmp; export LEFT=1; set -e; trap 'echo trap' EXIT; exit 5")
    assert (await shells.run('echo "$LEFT$(pwd)"')).stdout == b"/\n"


async def test_an_images_variables_reach_its_commands(docker_ready: str) -> None:
    """The shell has variables of its own; an image's of such a name had the shell's value in tests and for agents."""
    given = {letter: f"{letter} of the image" for letter in "BCSZpr"} | {"TMOUT": "1"}
    name = container_name("test-shell")
    image = await task_image(Path("unused"), docker_ready)
    await call(start_container, ContainerSpec(image, name, labels("test-shell"), environment=given))
    opened = Shells(name)
    try:
        for first_line in ("", f"{IN_SHELL}\n"):
            for _ in range(2):
                said = (await opened.run(f"{first_line}env")).stdout.decode().splitlines()
                assert {f"{name}={value}" for name, value in given.items()} <= set(said)
    finally:
        opened.close()
        await call(remove_container, name)


async def test_syntax_errors_and_missing_directories_are_the_commands_failure(shells: Shells) -> None:
    assert (await shells.run("if then")).return_code == 2
    missing = await shells.run(ShellCommand("echo hi", "/nowhere"))
    assert missing.return_code == 126 and b"nowhere" in missing.stderr and not missing.stdout


async def test_a_timeout_kills_the_process_group_and_keeps_the_shell(shells: Shells) -> None:
    first = (await shells.run("echo $PPID")).stdout
    with pytest.raises(TimeoutError):
        await shells.run("sleep 4711 & sleep 4712", seconds=0.5)
    await _until_gone(shells, "471")
    parents = {(await shells.run("echo $PPID")).stdout for _ in range(2)}
    assert first in parents


async def test_a_cancelled_command_is_killed_and_the_next_one_runs(shells: Shells) -> None:
    task = asyncio.create_task(shells.run("echo go > /tmp/go; exec sleep 4713"))
    await shells.run("until [ -s /tmp/go ]; do sleep 0.02; done", seconds=600)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shells.run("echo alive")).stdout == b"alive\n"
    await drain()
    await _until_gone(shells, "4713")


async def test_a_shell_that_runs_a_command_when_all_are_dropped_runs_no_other(shells: Shells) -> None:
    runs = "echo $PPID; touch /tmp/runs; until [ -e /tmp/dropped ]; do sleep 0.02; done"
    before = asyncio.create_task(shells.run(runs))
    await shells.run("until [ -e /tmp/runs ]; do sleep 0.02; done")
    shells.drop()
    after = await shells.run("echo $PPID; touch /tmp/dropped")
    assert (await before).stdout != after.stdout
    assert [(await shells.run("echo $PPID")).stdout for _ in range(2)] == [after.stdout] * 2


async def test_a_shell_that_dies_is_replaced(shells: Shells) -> None:
    died = await shells.run("echo before; kill -9 $PPID; sleep 5")
    assert (died.stdout, died.return_code) == (b"before\n", 137)
    assert (await shells.run("echo after")).stdout == b"after\n"
    await shells.run("kill -9 -1")
    assert (await shells.run("echo still")).stdout == b"still\n"


async def test_background_output_does_not_reach_the_next_command(shells: Shells) -> None:
    await shells.run("(until [ -e /tmp/go ]; do sleep 0.01; done; echo noise; echo noise >&2; touch /tmp/made) &")
    await shells.run("touch /tmp/go; until [ -e /tmp/made ]; do sleep 0.01; done", user="nobody", seconds=600)
    output = await shells.run("echo clean; echo bad >&2")
    assert (output.stdout, output.stderr) == (b"clean\n", b"bad\n")


async def test_endless_output_is_bounded(shells: Shells) -> None:
    output = await shells.run("yes | head -c 60000000", limit=1024 * 1024)
    assert output.truncated and len(output.stdout) < 1.3 * 1024 * 1024


async def test_a_fork_bomb_stays_in_its_container(shells: Shells, docker_ready: str) -> None:
    await shells.run("bomb() { bomb | bomb & wait; }; bomb </dev/null >/dev/null 2>&1 &")
    image = await task_image(Path("unused"), docker_ready)
    name = container_name("test-neighbour")
    await call(start_container, ContainerSpec(image, name, labels("test-shell"), pids_limit=128))
    try:
        assert (await Shells(name).run("echo unharmed", seconds=600)).stdout == b"unharmed\n"
    finally:
        await call(remove_container, name)


async def test_commands_overlap_in_shells_of_their_own(shells: Shells) -> None:
    outputs = await asyncio.gather(*(shells.run(f"sleep 0.3; echo {i}") for i in range(4)))
    assert [output.stdout for output in outputs] == [b"%d\n" % i for i in range(4)]


async def test_an_unknown_user_is_told(shells: Shells) -> None:
    with pytest.raises(RuntimeError, match="nosuchuser"):
        await shells.run("true", user="nosuchuser")


async def test_many_commands_in_a_row_stay_in_step(shells: Shells) -> None:
    for i in range(300):
        assert (await shells.run(f"echo {i}")).stdout == b"%d\n" % i
