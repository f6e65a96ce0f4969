"""A verification is watched from outside: what living processes of a policy do to it, floods, and the watcher's end."""

import asyncio
import contextlib
import ctypes
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.daemon import pid_of
from harbortrainer.docker.integrity import watch
from harbortrainer.docker.integrity.traces import PREFIX
from harbortrainer.docker.integrity.watch import Seen
from harbortrainer.docker.integrity.watched import MOST_READERS
from tests.support.docker_parts import a_run, remove_run, started, watcher, write_task
from tests.support.living_attacks import ATTACKS, HONEST, VERIFIES, living
from tests.support.tiers import few

pytestmark = pytest.mark.usefixtures("docker_ready")
DOCKERFILE = "FROM harbortrainer/tools:bookworm\nWORKDIR /app\n"
LIMIT_SEC, MOST_MB = 60.0, 50.0
AT_ONCE = 3  # containers: each mostly waits
TRACES = ["SYS_PTRACE"]  # Docker's older filters of system calls let some attacks pass with it alone


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[DockerEngineEnvironment]:
    run = a_run("watch")
    try:
        task = write_task(tmp_path / "task", dockerfile=DOCKERFILE)
        async with started(task, run, cap_add=TRACES) as one:
            yield one
    finally:
        await asyncio.to_thread(remove_run, run)


async def seen_of(environment: DockerEngineEnvironment, script: str, verifies: str = "") -> Seen:
    """What a verification beside the policy's script shows."""
    await environment.exec(script, user="root")
    await environment.close_agent_phase(final=False)
    async with environment.watched() as sight:
        await environment.exec(verifies or f"python3 -c {shlex.quote(VERIFIES)}", user="root", timeout_sec=90)
    return sight.seen


def peak_mb(pid: int) -> float:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def seen_beside(folder: Path, codes: Mapping[str, str]) -> dict[str, Seen]:
    """What verifications beside these living processes show, each in a container, AT_ONCE side by side."""
    slots, run = asyncio.Semaphore(AT_ONCE), a_run("watch")
    task = write_task(folder / "task", dockerfile=DOCKERFILE)

    async def one(name: str) -> Seen:
        async with slots, started(task, run, cap_add=TRACES) as environment:
            seen = await seen_of(environment, living(codes[name]))
            assert not (log := (await environment.exec("cat /app/log", user="root")).stdout), (name, log)
            return seen

    try:
        return dict(zip(codes, await asyncio.gather(*map(one, codes)), strict=True))
    finally:
        await asyncio.to_thread(remove_run, run)


@pytest.mark.parametrize("names", few(ATTACKS, 6))
async def test_what_living_processes_do_to_verification_is_seen_and_what_honest_ones_do_is_no_tampering(
    tmp_path: Path, names: list[str]
) -> None:
    found = await seen_beside(tmp_path, {name: ATTACKS[name][0] for name in names} | HONEST)
    assert {name for name in names if ATTACKS[name][1] not in found[name].tampered} == set()
    assert {name: found[name].tampered for name in HONEST} == dict.fromkeys(HONEST, ())
    assert [name for name, seen in found.items() if seen.unseen_memory or seen.opened is None] == []


async def test_without_a_living_process_nothing_is_traced(environment: DockerEngineEnvironment) -> None:
    """What is traced costs each process of the machine."""
    enabled: list[str] = []
    await environment.close_agent_phase(final=True)
    async with environment.watched() as sight:
        await environment.exec("cat /etc/passwd; echo 1 > /logs/verifier/reward.txt", user="root")
        enabled += [
            one.read_text()
            for mounted in Path(f"/proc/{watcher()}/fd").glob("*/instances")
            for one in mounted.glob(f"{PREFIX}{watcher()}-*/events/raw_syscalls/sys_enter/enable")
        ]
    seen = sight.seen
    assert not seen.unseen_memory and not seen.tampered and [one.pid for one in seen.processes] == [1]
    assert seen.opened is not None and "/etc/passwd" in seen.opened and "/logs/verifier/reward.txt" in seen.written
    assert enabled and "1" not in "".join(enabled)


# Each process lives for a millisecond: what is listed has ended when it is looked at, or is ending.
CHAIN = """import os, time
open("/app/begun", "w").close()
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""


async def test_a_chain_of_short_processes_is_a_process_that_ran(environment: DockerEngineEnvironment) -> None:
    start = f"(setsid python3 -c {shlex.quote(CHAIN)} </dev/null >/dev/null 2>&1 &)"
    await environment.exec(f"{start}; until [ -e /app/begun ]; do sleep 0.1; done", user="root")
    for _ in range(10):
        seen = await seen_of(environment, "true", "true")
        assert any(one.ran for one in seen.processes)


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[list[DockerEngineEnvironment]]:
    run = a_run("watch")
    task = write_task(folder / "task", dockerfile=DOCKERFILE)
    try:
        async with started(task, run) as one, started(task, run) as other:
            yield [one, other]
    finally:
        await asyncio.to_thread(remove_run, run)


# A million opens of 40,000 paths.
FLOOD = """import itertools, os, time
for number in range(40_000):
    os.close(os.open(f"/app/{number}", os.O_CREAT))
while not os.path.exists("/app/go"):
    time.sleep(0.01)
for number in itertools.islice(itertools.cycle(range(40_000)), 1_000_000):
    os.close(os.open(f"/app/{number}", os.O_RDONLY))
open("/app/done", "w").close()
time.sleep(1000)
"""
# 500 processes, 20,000 open files.
CROWD = """import os, time
files = [os.open("/app", os.O_RDONLY) for _ in range(40)]
for number in range(499):
    if os.fork() == 0:
        break
else:
    open("/app/ready", "w").close()
time.sleep(1000)
"""


async def beside(one: DockerEngineEnvironment, other: DockerEngineEnvironment, command: str) -> tuple[Seen, Seen]:
    """A verification by `command` in `one`, and a watched file in `other` meanwhile."""
    for each in (one, other):
        await each.close_agent_phase(final=True)
    async with one.watched() as first, other.watched() as second:
        work = asyncio.create_task(one.exec(command, user="root", timeout_sec=300))
        await other.exec("for i in {0..199}; do echo $i > /app/written-$i; sleep 0.01; done", user="root")
        await work
    return first.seen, second.seen


@pytest.mark.nightly
async def test_a_flood_is_not_known_and_spoils_no_other_watch(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.exec(f"(setsid python3 -c {shlex.quote(FLOOD)} </dev/null >/dev/null 2>&1 &)", user="root")
        await one.exec("until [ -e /app/39999 ]; do sleep 0.1; done", user="root", timeout_sec=120)
        seen, beside_it = await beside(one, other, "touch /app/go; until [ -e /app/done ]; do sleep 0.1; done")
    assert seen.opened is None and [process.ran for process in seen.processes if process.pid != 1] == [True]
    assert beside_it.opened is not None and {f"/app/written-{number}" for number in range(200)} <= beside_it.written
    assert not beside_it.unseen_memory
    assert peak_mb(watcher()) <= MOST_MB


@pytest.mark.nightly
async def test_a_crowd_is_looked_at_beside_another_watch(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.exec(f"(setsid python3 -c {shlex.quote(CROWD)} </dev/null >/dev/null 2>&1 &)", user="root")
        await one.exec("until [ -e /app/ready ]; do sleep 0.1; done", user="root", timeout_sec=120)
        seen, beside_it = await beside(one, other, "true")
    assert sum(one.pid != 1 for one in seen.processes) == 500 and seen.opened is not None and not seen.unseen_memory
    assert beside_it.opened is not None and {f"/app/written-{number}" for number in range(200)} <= beside_it.written
    assert peak_mb(watcher()) <= MOST_MB


@pytest.mark.nightly
async def test_who_writes_a_reward_and_ends_is_seen_on_a_busy_machine(environment: DockerEngineEnvironment) -> None:
    reward, n_writers = "/logs/verifier/reward.txt", 25
    writes = f"for i in $(seq {n_writers}); do sleep 0.1; (echo 1 > {reward}); done"
    busy = [await asyncio.create_subprocess_exec("sh", "-c", "while :; do :; done") for _ in range(8)]
    try:
        seen = await seen_of(environment, "true", writes)
    finally:
        for one in busy:
            one.kill()
            await one.wait()
    known = [one for one in seen.writers[reward] if one in seen.programs and seen.programs[one].words]
    assert os.sched_getscheduler(watcher()) & os.SCHED_RR, "it does not wait for its turn, or half of them are lost"
    assert len(known) > 0.6 * n_writers


async def test_names_and_paths_that_are_no_text_are_seen(environment: DockerEngineEnvironment) -> None:
    await environment.exec(
        "cp /bin/sleep $'/app/a\\nb\\xff'; (setsid $'/app/a\\nb\\xff' 1000 </dev/null >/dev/null 2>&1 &); "
        "echo x > $'/app/\\xff\\n'; echo x > '/app/x (deleted)'; mkfifo /app/pipe; "
        "(setsid sh -c 'cat /app/pipe; sleep 1000' </dev/null >/dev/null 2>&1 &)",
        user="root",
    )
    seen = await seen_of(environment, "true", "cat $'/app/\\xff\\n' '/app/x (deleted)'; echo x > /app/pipe")
    assert seen.opened is not None
    assert {"/app/\udcff\n", "/app/x (deleted)"} <= seen.opened.keys()
    assert "a\nb\ufffd" in {process.name for process in seen.processes}


async def test_what_is_opened_often_hides_nothing(environment: DockerEngineEnvironment) -> None:
    """Opens of a file that many processes have opened are not told any more."""
    await environment.exec("echo x > /app/one; ln /app/one /app/other; echo x > /app/alone", user="root")
    often = "for i in {1..50}; do cat /app/one /app/alone; done; cat /app/other; mv /app/alone /app/new; cat /app/new"
    seen = await seen_of(environment, "true", f"{often}; echo y >> /app/new; echo z > /app/alone; cat /app/alone")
    assert seen.opened is not None and {"/app/one", "/app/alone", "/app/other"} <= seen.opened.keys()
    assert len(seen.readers["/app/one"]) == len(seen.readers["/app/alone"]) == MOST_READERS
    assert {"/app/new", "/app/alone"} <= seen.written


# A test's own folders, as a package manager makes them, for some seconds.
FOLDERS = """import os, time
for number in range(4000):
    os.makedirs(f"/tests/{number}/below")
    time.sleep(0.0005)
"""


async def test_who_else_reads_a_file_of_the_image_is_told_no_more(environment: DockerEngineEnvironment) -> None:
    """It is told of those that were changed, take the place of such, or are mounted."""
    await environment.exec("echo >> /etc/issue; cp /etc/passwd /etc/new; rm /etc/skel/.profile", user="root")
    await environment.close_agent_phase(final=False)
    inode = Path(f"/proc/{pid_of(environment.container)}/root/etc/shells").stat().st_ino
    reads = "for i in 1 2 3 4 5; do /bin/cat {}; done > /dev/null"
    async with environment.watched() as sight:
        await environment.exec("cat /etc/shells", user="root")
        give_up = time.monotonic() + LIMIT_SEC
        while not any(f" ino:{inode:x} " in mark for mark in marks()):
            assert time.monotonic() < give_up
        await environment.exec(reads.format("/etc/shells /etc/hosts /etc/issue /etc/new"), user="root")
        await environment.exec("echo >> /etc/shells; mv /etc/new /etc/skel/.profile", user="root")
        await environment.exec(reads.format("/etc/shells /etc/skel/.profile"), user="root")
    readers = {path: len(pids) for path, pids in sight.seen.readers.items()}
    assert readers["/etc/shells"] == 1 and "/etc/shells" in sight.seen.written
    told = ("/etc/hosts", "/etc/issue", "/etc/new", "/etc/skel/.profile")
    assert {path: readers[path] for path in told} == dict.fromkeys(told, 5)


def marks() -> list[str]:
    """What the kernel shows of the watcher's descriptors."""
    found = list[str]()
    for file in Path(f"/proc/{watcher()}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed just now
            found.append(file.read_text())
    return found


@pytest.mark.nightly
async def test_thousands_of_new_folders_of_tests_take_a_part_of_the_time(environment: DockerEngineEnvironment) -> None:
    await environment.close_agent_phase(final=True)
    async with environment.watched():  # the program is there
        pass
    spent, began = cpu_sec(watcher()), time.monotonic()
    seen = await seen_of(environment, "true", f"python3 -c {shlex.quote(FOLDERS)}")
    spent, took = cpu_sec(watcher()) - spent, time.monotonic() - began
    assert seen.opened is not None and seen.tampered == ()
    assert spent < took / 3, f"{spent:.1f} of {took:.1f} s"


async def test_a_watcher_that_dies_is_started_again(environment: DockerEngineEnvironment) -> None:
    await environment.close_agent_phase(final=True)
    async with environment.watched() as sight:
        os.kill(watcher(), signal.SIGKILL)
    assert sight.seen == Seen(unseen_memory=True)
    async with environment.watched() as sight:
        await environment.exec("cat /etc/passwd", user="root")
    assert sight.seen.opened is not None and "/etc/passwd" in sight.seen.opened


async def test_one_look_shows_processes_and_ports(environment: DockerEngineEnvironment) -> None:
    await environment.exec(
        "(setsid python3 -m http.server 8123 </dev/null >/dev/null 2>&1 &); "
        "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)",
        user="root",
    )
    await environment.exec("until (: </dev/tcp/127.0.0.1/8123); do sleep 0.05; done 2>/dev/null", user="root")
    await environment.close_agent_phase(final=True)
    async with asyncio.timeout(LIMIT_SEC):
        while True:
            left = await watch.look(environment.container, "run", (), 0.1)
            if not any(one.ran for one in left):
                break
    assert sorted((one.name, one.ports) for one in left if one.pid != 1) == [("python3", (8123,)), ("sleep", ())]


async def test_a_verification_waits_while_others_have_all_that_the_kernel_gives(
    environment: DockerEngineEnvironment,
) -> None:
    libc, held, n_free = ctypes.CDLL(None), list[int](), 1  # a verification takes two groups of events
    await environment.close_agent_phase(final=False)
    await asyncio.to_thread(watch._watcher, environment.run_id)  # pyright: ignore[reportPrivateUsage]
    try:
        while (group := libc.fanotify_init(0, 0)) >= 0:
            held.append(group)
        for _ in range(n_free):
            os.close(held.pop())
        async with asyncio.TaskGroup() as tasks:
            verified = tasks.create_task(seen_of(environment, "true", "cat /etc/hostname"))
            await asyncio.wait([verified], timeout=2)
            assert not verified.done()
            while held:
                os.close(held.pop())
        assert verified.result().opened is not None
    finally:
        for group in held:
            os.close(group)
