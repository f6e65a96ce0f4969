import asyncio
import io
import os
import re
import socket
import struct
from typing import Any

import pytest

from harbortrainer.docker.box.command import IN_SHELL, ShellCommand, script
from harbortrainer.docker.box.environment import found_no_process
from harbortrainer.docker.box.shell import Output, Shell, ShellGone
from tests.support.fakes import let_others_act

MARK = re.compile(rb"begin_ (\w+)\n")  # before each command; what it prints is told by it


class Container:
    """The other end of a shell's streams, which it keeps open."""

    def __init__(self, process: io.FileIO | None = None) -> None:
        self.reader, self.sent = asyncio.StreamReader(), b""
        writer: Any = self
        self.shell = Shell(self.reader, writer, process)

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    async def begun(self, **how: Any) -> asyncio.Task[Output]:
        """A command, whose mark is known."""
        running = asyncio.create_task(self.shell.run(ShellCommand("x"), **how))
        await let_others_act()
        return running

    def frame(self, stream: int, payload: bytes) -> bytes:
        """Print `payload`, in which MARK is the command's."""
        found = MARK.search(self.sent)
        payload = payload.replace(b"MARK", found[1] if found else b"")
        return struct.pack(">BxxxL", stream, len(payload)) + payload


async def test_frames_in_pieces_make_the_same_output() -> None:
    running, frame = await (there := Container()).begun(), there.frame
    stream = frame(1, b"noise of before\nMARK:b\n") + frame(2, b"MARK:b\n") + frame(2, b"eMARK:p12\nrr")
    stream += frame(1, b"out\0\xff") + frame(1, b"MARK") + frame(2, b"MARK:e\n") + frame(1, b":e7\n")
    for i in range(len(stream)):
        there.reader.feed_data(stream[i : i + 1])
        await asyncio.sleep(0)
    output = await running
    assert (output.stdout, output.stderr, output.return_code) == (b"out\0\xff", b"err", 7)


async def test_long_output_keeps_its_ends() -> None:
    running, frame = await (there := Container()).begun(limit=1000), there.frame
    there.reader.feed_data(frame(1, b"MARK:b\nfirst") + frame(2, b"MARK:b\n"))
    for _ in range(100):
        there.reader.feed_data(frame(1, b"x" * 100))
    there.reader.feed_data(frame(1, b"lastMARK:e0\n") + frame(2, b"MARK:e\n"))
    output = await running
    assert output.truncated
    assert output.stdout.startswith(b"firstxxx") and output.stdout.endswith(b"xxxlast")
    assert b"bytes dropped" in output.stdout and len(output.stdout) < 1500


async def test_a_shell_that_dies_tells_whether_the_command_had_started() -> None:
    running = await (there := Container()).begun()
    there.reader.feed_data(there.frame(1, b"MARK:b\nhalf"))
    there.reader.feed_eof()
    output = await running
    assert (output.stdout, output.return_code) == (b"half", 137)
    fresh = Container()
    fresh.reader.feed_eof()
    with pytest.raises(ShellGone):
        await fresh.shell.run(ShellCommand("x"))


async def test_a_shell_whose_stream_stays_open_ends_with_its_process() -> None:
    """As of an attached container; what it wrote before its end still comes."""
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    ours, daemons = socket.socketpair()
    with daemons:
        first = Shell(*await asyncio.open_connection(sock=ours), io.FileIO(os.pidfd_open(process.pid)))
        running = asyncio.create_task(first.run(ShellCommand("x")))
        mark = MARK.search(await asyncio.to_thread(daemons.recv, 10_000))
        process.kill()
        await process.wait()
        said = (mark[1] if mark else b"") + b":b\nhalf"
        daemons.sendall(struct.pack(">BxxxL", 1, len(said)) + said)
        output = await running
        assert (output.stdout, output.return_code, output.shell_died) == (b"half", 137, True)
        assert not first.alive
        first.close()


async def test_null_bytes_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="null byte"):
        await Container().shell.run(ShellCommand("echo \0"))


@pytest.mark.parametrize("command", ["ls", f"echo; {IN_SHELL}", "tmux ls"])
def test_only_scripts_that_say_so_run_in_the_shell_itself(command: str) -> None:
    assert b"eval" not in script("MARK", ShellCommand(command), block=False)
    assert b"eval" in script("MARK", ShellCommand(f"{IN_SHELL}\n{command}"), block=False)


@pytest.mark.parametrize(("argument", "counted"), [("u" * 1000, True), ("ü" * 1000, False)])
def test_bash_is_told_how_many_characters_come(argument: str, counted: bool) -> None:
    """Not where its locale would decide how many bytes these are."""
    lines = script("MARK", ShellCommand(f"echo {argument}"), block=True).decode()
    head, _, rest = lines.removeprefix("begin_ MARK\n").partition("\n")
    found = re.fullmatch(r"TMOUT=0 read -r -N (\d+) C_ .*", head)
    assert (found is not None) == counted
    if found:
        assert rest[int(found[1]) :] == "end_ MARK\n" and argument in rest


@pytest.mark.parametrize(
    ("return_code", "stderr", "none_left"),
    [
        (254, b"", True),
        (143, b"bash: fork: retry: Resource temporarily unavailable\n", True),
        (254, b"bash: fork: Resource temporarily unavailable\n", True),
        (143, b"", False),
        (143, b"read: Resource temporarily unavailable\n", False),
        (1, b"bash: fork: retry: Resource temporarily unavailable\n", False),
    ],
)
def test_a_bash_that_cannot_fork_found_no_process(return_code: int, stderr: bytes, none_left: bool) -> None:
    """After its retries, bash ends its own pipeline with SIGTERM: 143."""
    assert found_no_process(Output(b"", stderr, return_code)) is none_left
