"""Files of a container, read and written from outside: what an agent puts there leads nowhere else."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harbortrainer.docker.box import first_process
from harbortrainer.docker.box.archive import LOGS, MAX_DEPTH
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.box.files import fetch, upload_dir
from harbortrainer.docker.box.first_process import end_first
from harbortrainer.docker.box.root_folder import Unusual, changed_system, copy_in, copy_logs, renew
from harbortrainer.docker.daemon import call, engine, pid_of
from tests.support.deep_folder import deepen
from tests.support.docker_parts import BASE, a_run, started, write_task

RUN = a_run("test-inside")
HOLD = """import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.pause()
"""
pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root enters a container's files"),
]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[DockerEngineEnvironment]:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        yield environment


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of this machine."""
    folder = tmp_path / "source"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "run ä.sh").write_text("#!/bin/sh\n")
    (folder / "run ä.sh").chmod(0o755)
    (folder / "sub" / "file").write_bytes(bytes(range(256)))
    (folder / "sub" / "file").chmod(0o604)
    for path in (folder / "run ä.sh", folder / "sub" / "file", folder / "sub"):
        os.utime(path, (1e9, 1e9))
    return folder


async def output(environment: DockerEngineEnvironment, command: str) -> str:
    return (await environment.exec(command, user="root")).stdout or ""


def listed(folder: Path) -> dict[str, tuple[int, int, bytes | None]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode if path.is_file() else 0,
            int(path.stat().st_mtime),
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }


@contextlib.contextmanager
def holding(file: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


async def test_both_ways_leave_the_same_files(
    environment: DockerEngineEnvironment, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "sub" / "setuid").write_text("x")
    (source / "sub" / "setuid").chmod(0o4711)
    os.utime(source / "sub" / "setuid", (1e9, 1e9))
    os.utime(source / "sub", (1e9, 1e9))
    look = (
        "cd /in && find . -mindepth 1 -printf '%p %m %u %g %y %s\\n' | sort; find . -type f -printf '%p %T@\\n' | sort"
    )
    direct, by_tar = tmp_path / "direct", tmp_path / "tar"
    direct.mkdir()
    copy_in(environment.container, source, "/in")
    copy_logs(environment.container, "/in", direct)
    seen = await output(environment, look)
    await output(environment, "rm -r /in")
    monkeypatch.setattr(first_process, "_noted", {})  # tar and the daemon do it
    await call(upload_dir, environment.container, source, "/in")
    await call(fetch, environment.container, "/in", by_tar)
    assert await output(environment, look) == seen and "./sub/file 604 root root f 256" in seen
    assert listed(direct) == listed(by_tar)


async def test_links_of_the_agent_lead_nowhere(
    environment: DockerEngineEnvironment, source: Path, tmp_path: Path
) -> None:
    secret, back = tmp_path / "secret", tmp_path / "back"
    secret.mkdir()
    (secret / "key").write_text("of this machine")
    await output(environment, f"mkdir -p /in {secret.parent}; ln -s {secret} /in/sub; ln -s {secret} {secret}")
    for path in ("/in/sub", str(secret)):
        with pytest.raises(Unusual):
            copy_logs(environment.container, path, back)
    assert not back.exists()
    copy_logs(environment.container, "/in", back)
    with pytest.raises(Unusual):
        copy_in(environment.container, source, "/in")
    assert not list(back.iterdir()) and [one.name for one in secret.iterdir()] == ["key"]


async def test_a_link_in_place_of_a_file_is_replaced(environment: DockerEngineEnvironment, source: Path) -> None:
    await output(environment, "mkdir -p /in/sub; echo kept > /app/kept; ln -s /app/kept /in/sub/file")
    await environment.upload_dir(source, "/in")
    assert await output(environment, "cat /app/kept; stat -c %F /in/sub/file") == "kept\nregular file\n"


MADE: list[tuple[str, int, list[str] | None]] = [  # in a folder of logs, how much of it is left out, what is kept
    ("mkfifo pipe", 1, []),
    (f"truncate -s {LOGS.size + 1} big", 1, []),
    (f"touch $(seq {LOGS.entries + 10})", 1, None),
    ("touch $(printf '\\377%.0s' $(seq 255))", 0, [os.fsdecode(b"\xff" * 255)]),
    ("ln -s 0 inside; ln -s /etc/passwd out; ln -s ../x up", 0, ["inside"]),
    ("mkdir sub; ln -s sub way; echo 2 > sub/1", 0, ["sub", "sub/1", "way"]),
]


async def test_logs_are_copied_as_far_as_the_limits_go(environment: DockerEngineEnvironment, tmp_path: Path) -> None:
    for number, (made, left_out, kept) in enumerate(MADE):
        logs, back = f"/in{number}", tmp_path / str(number) / "back"
        await output(environment, f"mkdir {logs}; cd {logs}; echo 1 > reward.txt; echo text > 0; {made}")
        (back / "0").mkdir(parents=True)
        (back / "sub").symlink_to(back.parent)
        assert copy_logs(environment.container, logs, back, ("reward.txt", "none")) == left_out, made
        assert (back / "reward.txt").read_text() == "1\n"
        if kept is not None:
            found = set(listed(back)) - {"reward.txt", "0"}
            assert found == {*kept, "sub"} and (back / "0").is_dir(), made
        assert not (back.parent / "1").exists()


async def test_a_file_that_a_process_holds_is_not_waited_for(
    environment: DockerEngineEnvironment, tmp_path: Path
) -> None:
    """By a lease: an open waits for 45 s."""
    await output(environment, "mkdir /in; echo x > /in/held; echo x > /in/other")
    held = Path(f"/proc/{pid_of(environment.container)}/root/in/held")
    with holding(held):
        started = time.monotonic()
        assert copy_logs(environment.container, "/in", tmp_path / "back") == 1
        assert time.monotonic() - started < 20 and set(listed(tmp_path / "back")) == {"other"}


async def test_folders_as_deep_as_can_be(environment: DockerEngineEnvironment, tmp_path: Path) -> None:
    """No recursion, no path: neither where they are read nor where they are put away."""
    await output(environment, "mkdir -p /in/sub")
    deepen(f"/proc/{pid_of(environment.container)}/root/in/sub", 5000, "d")
    assert copy_logs(environment.container, "/in", tmp_path / "back") >= 1
    assert len(listed(tmp_path / "back")) <= MAX_DEPTH + 1
    renew(environment.container, {"/in/sub": 0o755}, "/logs/.before")
    assert await output(environment, "ls -A /in/sub; ls -d /logs/.before-*/d | wc -l") == "1\n"


async def test_what_docker_mounts_is_no_file_of_the_container(
    environment: DockerEngineEnvironment, tmp_path: Path
) -> None:
    for path in ("/proc/1", "/dev"):
        with pytest.raises(Unusual):
            copy_logs(environment.container, path, tmp_path / "back")
    assert copy_logs(environment.container, "/etc", tmp_path / "back") >= 3
    assert (tmp_path / "back" / "passwd").exists() and not (tmp_path / "back" / "hosts").exists()


async def test_a_folder_where_a_file_should_be(environment: DockerEngineEnvironment, source: Path) -> None:
    await output(environment, "mkdir -p '/in/run ä.sh/full'")
    with pytest.raises(Unusual):
        copy_in(environment.container, source, "/in")


SPOILT = (
    "true",
    "touch /in/sub/.hidden",
    "rmdir /in/sub; ln -s /app /in/sub",
    "rmdir /in/sub; mkfifo /in/sub",
    "rm -r /in; ln -s /app /in; mkdir /app/sub",
    "rm -r /in; touch /in",
    "rm -r /logs; ln -s /app /logs; touch /in/sub/x",  # the last: it leads the others' logs to the work
)


async def test_folders_are_renewed_whatever_is_there(environment: DockerEngineEnvironment) -> None:
    folders = {"/in/sub": 0o777, "/new": 0o755}
    look = "stat -c '%a %u %g %F' /in/sub /new; ls -A /in/sub /app | grep -v '^sub$'; find /in -maxdepth 0"
    for spoilt in SPOILT:
        await output(environment, "rm -rf /in /new /app/*; mkdir -p /in/sub; chown 1:1 /in/sub; touch /app/kept")
        await output(environment, f"chmod 700 /in/sub; {spoilt}")
        renew(environment.container, folders, "/logs/.before")
        expected = "777 0 0 directory\n755 0 0 directory\n/app:\nkept\n\n/in/sub:\n/in\n"
        assert await output(environment, look) == expected, spoilt


HOSTS = "cat /hosts > /etc/hosts"
SYSTEM: list[tuple[str, dict[str, str] | None, str]] = [  # what changes, what is seen (None = refused), what undoes it
    ("ln -sfn /app /dev/fd", {"/dev": ""}, "ln -sfn /proc/self/fd /dev/fd"),
    ("mv /tmp /old; ln -s /app /tmp", None, "rm /tmp; mv /old /tmp"),
    ("chmod 755 /dev/shm", {"/dev": ""}, "chmod 1777 /dev/shm"),
    ("chown 5 /dev/null", {"/dev": ""}, "chown 0 /dev/null"),
    ("chmod 700 /; chmod 600 /etc/hosts", {"/": "", "/etc/hosts": ""}, "chmod 755 /; chmod 644 /etc/hosts"),
    ("echo 1.2.3.4 x >> /etc/hosts", {"/etc/hosts": "1.2.3.4 x\n"}, HOSTS),
    ("sed '1d' /etc/hosts > /h; cat /h > /etc/hosts", {"/etc/hosts": ""}, HOSTS),
    ("printf '1.2.3.4\\tharbor\\n' >> /etc/hosts", {}, HOSTS),
    ("seq 100000 > /etc/hosts", None, HOSTS),
    ("mv /dev/null /dev/zero", None, ""),  # the last: nothing in the container may undo it
]


async def test_a_changed_system_is_seen(environment: DockerEngineEnvironment) -> None:
    network = {"/etc/hosts": await output(environment, "cp /etc/hosts /hosts; cat /hosts")}
    for spoilt, changed, undo in SYSTEM:
        assert changed_system(environment.container, network) == {}, f"before {spoilt}"
        await output(environment, spoilt)
        if changed is None:
            with pytest.raises(Unusual):
                changed_system(environment.container, network)
        else:
            assert changed_system(environment.container, network) == changed, spoilt
        await output(environment, undo)


async def test_only_the_process_that_was_noted_is_killed(environment: DockerEngineEnvironment) -> None:
    name = environment.container
    noted = first_process._noted[name]  # pyright: ignore[reportPrivateUsage]
    first_process._noted[name] = replace(noted, began="0")  # pyright: ignore[reportPrivateUsage]
    assert not end_first(name) and await output(environment, "echo up") == "up\n"
    first_process._noted[name] = noted  # pyright: ignore[reportPrivateUsage]
    assert end_first(name)
    assert engine().wait(name, timeout=60)["StatusCode"] == 137


async def test_a_process_with_another_root_is_not_trusted(
    environment: DockerEngineEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root agent could make PID 1 change its root by ptrace: as another process of the container has done here."""
    name = environment.container
    noted = first_process._noted[name]  # pyright: ignore[reportPrivateUsage]
    copy_logs(name, "/app", tmp_path)
    await output(environment, "mkdir -p /app/jail/in; cp -r /bin /lib* /usr /app/jail/ 2>/dev/null; true")
    client = engine()
    client.exec_start(
        client.exec_create(name, ["chroot", "/app/jail", "sleep", "1000"], user="root")["Id"], detach=True
    )
    rows = client.top(name, "-eo pid,args")["Processes"]
    while not (found := [int(row[0]) for row in rows or () if row[1] == "sleep 1000"]):
        rows = client.top(name, "-eo pid,args")["Processes"]
    began = (Path("/proc") / str(found[0]) / "stat").read_text().rpartition(")")[2].split()[19]
    monkeypatch.setitem(first_process._noted, name, replace(noted, pid=found[0], began=began))  # pyright: ignore[reportPrivateUsage]
    assert (Path("/proc") / str(found[0]) / "root" / "in").is_dir()
    with pytest.raises(Unusual):
        copy_logs(name, "/in", tmp_path)
    monkeypatch.undo()


async def test_files_go_other_ways_once_the_container_was_started_again(
    environment: DockerEngineEnvironment, source: Path, tmp_path: Path
) -> None:
    copy_logs(environment.container, "/app", tmp_path)
    engine().restart(environment.container, timeout=0)
    with pytest.raises(Unusual):
        copy_logs(environment.container, "/app", tmp_path)
    await environment.upload_dir(source, "/in")
    await environment.download_dir("/in", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "file").read_bytes() == bytes(range(256))


@pytest.mark.parametrize("dockerfile", [BASE, f"{BASE}RUN rm /bin/bash\n"], ids=["bash", "sh"])
async def test_a_shell_finds_what_cannot_be_looked_at_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dockerfile: str
) -> None:
    for spoilt, changed in {
        "touch /tests/evil": set[str](),
        "echo 1.2.3.4 x >> /etc/hosts": {"/etc/hosts"},
        "chmod 600 /etc/resolv.conf": {"/etc/resolv.conf"},
        "rm /dev/null; echo > /dev/null; chmod 700 /": {"/", "/dev"},
    }.items():
        async with started(write_task(tmp_path / spoilt[:2], dockerfile=dockerfile), RUN) as one:
            await one.exec(spoilt, user="root")
            monkeypatch.setattr(first_process, "_noted", {})
            await one.close_agent_phase(final=True)
            assert {*one.phases.mounted} == changed
            assert await output(one, "ls /tests; stat -c %a /tests /logs/verifier") == "755\n777\n"
