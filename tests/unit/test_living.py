"""What a look at living processes shows of those that hide what they have open."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harbortrainer.docker.integrity.living import Look, mapped, pids_of

LISTENS = "one = socket.create_server(('127.0.0.1', 0)); port = one.getsockname()[1]\n"
WAITS = "print(port, flush=True); sys.stdin.read(1)\n"
HEADLESS = f"{LISTENS}threading.Thread(target=lambda: exec({WAITS!r}, globals())).start()\nlibc.syscall(60, 0)\n"
# close_range: the files of the thread are its own from now on.
OF_A_THREAD = f"""{LISTENS}
def holds():
    libc.syscall(436, 1 << 20, 1 << 20, 2)
    held.set()
    sys.stdin.read(1)
held = threading.Event()
threading.Thread(target=holds, daemon=True).start()
held.wait()
os.close(one.detach())
print(port, flush=True)
threading.Event().wait()
"""
IN_FLIGHT = (
    f"{LISTENS}pair = socket.socketpair(); socket.send_fds(pair[0], [b'x'], [one.fileno()]); one.close()\n{WAITS}"
)


@contextmanager
def running(code: str) -> Iterator[tuple[int, int]]:
    """A process that runs it, and the port that it prints."""
    text = f"import ctypes, os, socket, sys, threading\nlibc = ctypes.CDLL(None)\n{code}"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("code", [HEADLESS, OF_A_THREAD])
def test_open_files_of_every_thread_are_seen(code: str) -> None:
    with running(code) as (pid, port):
        assert pid in pids_of(os.getpid(), 1 << 20)
        assert Look(os.getpid(), {pid}).processes[pid].ports == [port]
        assert mapped(pid) == ([], True)


MAPS = """import mmap
with open({path!r}, "w+b") as file:
    file.truncate(4096)
    page = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
other = mmap.mmap(os.open("/usr/bin/env", os.O_RDONLY), 4096, prot=mmap.PROT_READ)
print(1, flush=True); sys.stdin.read(1)
"""


def test_a_map_that_may_be_written_later_counts_as_open(tmp_path: Path) -> None:
    path = str(tmp_path / "verdict")
    with running(MAPS.format(path=path)) as (pid, _):
        assert mapped(pid) == ([path], True)


def test_open_files_on_their_way_make_a_look_incomplete() -> None:
    with running(f"{LISTENS}{WAITS}") as (pid, port):
        look = Look(os.getpid(), {pid})
        assert look.complete and look.processes[pid].ports == [port]
    with running(IN_FLIGHT) as (pid, _):
        assert not Look(os.getpid(), {pid}).complete
