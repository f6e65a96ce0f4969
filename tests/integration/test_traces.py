"""What a trace tells of a process that it follows. Needs root."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", True),
        ("fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgid(os.getppid()))", True),  # a group
        ("fcntl.fcntl(0, 15, struct.pack('ii', 1, os.getppid()))", True),  # F_SETOWN_EX
        ("fcntl.ioctl(socket.socket(), 0x8901, struct.pack('i', os.getppid()))", True),  # FIOSETOWN
        ("fcntl.fcntl(0, fcntl.F_SETOWN, 0); fcntl.fcntl(0, fcntl.F_GETFL)", False),
    ],
)
def test_who_lets_the_kernel_signal_another_is_told(trace: Trace, act: str, told: bool) -> None:
    calls = followed(trace, f"import fcntl, struct\n{act}")
    assert [call.name for call in calls] == ["signal"] * told


def test_symbolic_links_are_counted(trace: Trace) -> None:
    followed(trace, "os.symlink('x', '/dev/shm/none'); os.unlink('/dev/shm/none')")
    assert trace.links == 1


def test_limits_of_another_process_are_told_and_questions_are_not(trace: Trace) -> None:
    asked = "limits = resource.prlimit(os.getppid(), resource.RLIMIT_CORE)\n"
    assert followed(trace, asked) == []
    (call,) = followed(trace, f"{asked}resource.prlimit(os.getppid(), resource.RLIMIT_CORE, limits)")
    assert call.name == "prlimit"


def test_many_calls_hide_none(trace: Trace) -> None:
    calls = "attach = ctypes.CDLL(None).ptrace\nfor _ in range(300): attach(16, 1 << 21, 0, 0)"
    assert len(followed(trace, calls)) == MOST_CALLS
    assert trace.lost


def acting(act: str) -> subprocess.Popen[bytes]:
    """A process that acts once it is told to."""
    return subprocess.Popen([sys.executable, "-c", ACTS + act], stdin=subprocess.PIPE)


ATTACH = "ctypes.CDLL(None).ptrace(16, 1 << 21, 0, 0)"
CHILD = f"""
if not os.fork():
    {ATTACH}
    os._exit(0)
os.wait()
"""


def test_containers_share_an_instance_and_each_has_its_own_events() -> None:
    traces = Traces()
    lent = [traces.lend() for _ in range(3)]
    try:
        acts = (CHILD, "os.truncate('/dev/null', 0)", "pass")
        with contextlib.ExitStack() as running:
            processes = [running.enter_context(acting(f"try: exec({act!r})\nexcept OSError: pass")) for act in acts]
            for trace, process in zip(lent, processes, strict=True):
                assert trace is not None
                trace.follow({process.pid})
            for process in processes:
                process.communicate(b"\n")
        attaching, cutting, idle = (one for one in lent if one is not None)
        traces.give_back(idle)
        assert [call.name for call in attaching.take()] == ["ptrace"] and len(attaching.forked) == 1
        assert cutting.take() == [] and not cutting.forked and cutting.moved and not attaching.moved
        assert not attaching.lost and not cutting.lost
        assert idle.take() == [] and not idle.moved
    finally:
        traces.close()


@pytest.mark.parametrize("name", ["a\\n-99 [001] xyz", "\\n", "CPU:1 [LOST 1", "\\nCPU:1 [LOST 1", "-1   [000] 1.1:"])
def test_a_programs_name_hides_nothing(trace: Trace, name: str) -> None:
    (call,) = followed(trace, f"ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n{CHILD}")
    assert call.name == "ptrace" and len(trace.forked) == 1 and not trace.lost


def test_nothing_is_recorded_where_nothing_is_lent() -> None:
    traces = Traces()
    try:
        recorded = Path(traces._folder) / "events" / "sched" / "sched_process_fork" / "enable"
        for _ in range(2):
            first, second = traces.lend(), traces.lend()
            assert first is not None and second is not None and followed(first, CHILD)
            traces.give_back(second)
            assert recorded.read_text() == "1\n", "one is lent"
            traces.give_back(first)
            assert recorded.read_text() == "0\n"
    finally:
        traces.close()


def test_what_a_container_does_that_is_not_watched_any_more_is_not_told_of_another() -> None:
    traces = Traces()
    ended, watched = traces.lend(), traces.lend()
    assert ended is not None and watched is not None
    try:
        with acting(CHILD) as left, acting("os.truncate('/dev/shm/none', 0)") as other:
            ended.follow({left.pid})
            watched.follow({other.pid})
            traces.give_back(ended)
            for process in (left, other):
                process.communicate(b"\n")
        assert watched.take() == [] and watched.moved and not watched.forked and not watched.lost
    finally:
        traces.close()


def test_a_thread_keeps_its_events_when_a_container_that_had_its_number_is_given_back() -> None:
    traces = Traces()
    first, second = traces.lend(), traces.lend()
    assert first is not None and second is not None
    act = f"{ACTS}socket.create_server(('127.0.0.1', 9294)).close()"
    with subprocess.Popen([sys.executable, "-c", act], stdin=subprocess.PIPE) as process:
        for one in (first, second):
            one.follow({process.pid})
        traces.give_back(first)
        process.communicate(b"\n")
    time.sleep(0.1)  # two processors may write at once
    second.take()
    assert second.ports == {"tcp 9294"}
    traces.give_back(second)
    traces.close()


def test_many_that_begin_at_once_wait_for_a_few_writes_and_each_has_its_events() -> None:
    """The kernel takes as long for one process as for a hundred, and longer with more processors."""
    traces, written, began = Traces(), list[str](), threading.Barrier(24)
    write = traces._write

    def counted(name: str, text: str, mode: int = os.O_TRUNC) -> None:
        written.append(name)
        write(name, text, mode)

    def begin(process: subprocess.Popen[bytes]) -> Trace:
        trace = traces.lend()
        assert trace is not None
        began.wait(30)
        trace.follow({process.pid})
        return trace

    traces._write = counted
    try:
        with contextlib.ExitStack() as running, ThreadPoolExecutor(24) as pool:
            processes = [running.enter_context(acting(CHILD)) for _ in range(24)]
            lent = list(pool.map(begin, processes))
            assert written.count("set_event_pid") < 12
            for process in processes:
                process.communicate(b"\n")
            time.sleep(0.1)  # two processors may write at once
            assert [len(trace.take()) for trace in lent] == [1] * 24
            assert not any(trace.lost for trace in lent)
    finally:
        traces.close()
