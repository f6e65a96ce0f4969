"""What a trace tells of a process that it follows. Needs root."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from harbortrainer.docker.integrity.traces import MOST_CALLS, Call, Trace, Traces

ACTS = """import ctypes, os, resource, socket, sys
sys.stdin.readline()
def bound(family, name):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.bind(name)
        one.sendto(b"x", ("127.0.0.1", 9)) if family == socket.AF_INET else None
"""


@pytest.fixture
def trace() -> Iterator[Trace]:
    traces = Traces()
    lent = traces.lend()
    assert lent is not None, traces.why
    yield lent
    traces.give_back(lent)
    traces.close()


def followed(trace: Trace, act: str) -> list[Call]:
    """The calls of a process that acts."""
    with subprocess.Popen([sys.executable, "-c", ACTS + act], stdin=subprocess.PIPE) as process:
        trace.follow({process.pid})
        process.communicate(b"\n")
    assert process.returncode == 0
    time.sleep(0.1)  # two processors may write at once
    return trace.take()


@pytest.mark.parametrize(
    ("act", "ports", "listened"),
    [
        ("bound(socket.AF_INET, ('127.0.0.1', 9292))", {"udp 9292"}, 0),
        ("bound(socket.AF_INET, ('127.0.0.1', 0))", set(), 0),  # what the system chooses
        ("bound(socket.AF_UNIX, chr(0) + 'judge')", set(), 1),
        ("bound(socket.AF_UNIX, chr(0) + 'nine char')", set(), 1),  # as long as an address of netlink
        ("socket.create_server(('127.0.0.1', 9293)).close()", {"tcp 9293"}, 0),
        ("socket.getaddrinfo('localhost', 80)", set(), 0),  # binds a socket of netlink
    ],
)
def test_sockets_of_a_moment_are_told(trace: Trace, act: str, ports: set[str], listened: int) -> None:
    assert followed(trace, act) == []
    assert (trace.ports, trace.listened) == (ports, listened)


@pytest.mark.parametrize(
    ("act", "moved", "changed"),
    [
        ("os.close(os.open('/dev/null', os.O_RDONLY | os.O_TRUNC))", True, False),
        ("os.truncate('/dev/shm/none', 1)", True, False),
        ("os.utime('/dev/shm/none')", False, True),
        ("os.setxattr('/dev/shm/none', 'user.x', b'')", False, True),
        ("open('/dev/null', 'w').write('x')", False, False),  # fanotify tells
    ],
)
def test_what_fanotify_does_not_tell_is_looked_for(trace: Trace, act: str, moved: bool, changed: bool) -> None:
    followed(trace, f"try: {act}\nexcept OSError: pass")
    assert (trace.moved, trace.changed) == (moved, changed)


def test_limits_of_another_process_are_told_and_questions_are_not(trace: Trace) -> None:
    asked = "limits = resource.prlimit(os.getppid(), resource.RLIMIT_CORE)\n"
    assert followed(trace, asked) == []
    (call,) = followed(trace, f"{asked}resource.prlimit(os.getppid(), resource.RLIMIT_CORE, limits)")
    assert call.name == "prlimit"


def test_many_calls_hide_none(trace: Trace) -> None:
    calls = "attach = ctypes.CDLL(None).ptrace\nfor _ in range(300): attach(16, 1 << 21, 0, 0)"
    assert len(followed(trace, calls)) == MOST_CALLS
    assert trace.lost
