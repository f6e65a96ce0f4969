"""A trial's calls of the daemon, and root shells that start with its container or by its runtime: as an exec's."""

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import docker
import pytest

from harbortrainer.docker.box import first_shell, runtime_shell
from harbortrainer.docker.box.command import IN_SHELL
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.box.shell import Shells
from harbortrainer.docker.keeping.cleaning import drain
from harbortrainer.learning.trajectory import Outcome
from tests.support.docker_parts import BASE, started, write_task
from tests.support.trial_parts import SOLVE, answer, local_host, make_task, request

RUN = "test-first-shell"
pytestmark = [
    pytest.mark.usefixtures("docker_ready"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the shell's process is seen by root only"),
]
# What a program can tell about how it was started; without process numbers.
LOOK = (
    "grep -E '^(SigBlk|SigIgn|SigCgt|Cap|Groups|Seccomp|NoNewPrivs|Umask)' /proc/self/status; ulimit -a; env; pwd; "
    "cat /proc/self/cgroup /proc/self/oom_score_adj; nice; id; echo $- $SHLVL; tty; "
    "for f in 0 1 2 3 9; do readlink /proc/self/fd/$f | sed 's/[0-9]*//g'; done; cat /proc/1/cmdline; ls -l /proc/1/fd"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of the daemon from here on, those that concern the trial's own container."""
    found = Counter[str]()

    def counted(name: str) -> Any:
        call = getattr(docker.APIClient, name)

        def counting(self: docker.APIClient, *args: Any, **kwargs: Any) -> Any:
            holder = "ht-network-" in f"{args} {kwargs.get('name')}"
            found[name] += not holder
            return call(self, *args, **kwargs)

        return counting

    names = ("create_container", "start", "attach_socket", "exec_create", "exec_start", "exec_inspect", "stop", "kill")
    more = ("inspect_container", "put_archive", "get_archive", "head", "diff", "top", "wait", "remove_container")
    for name in names + more:
        monkeypatch.setattr(docker.APIClient, name, counted(name))
    return found


async def seen(environment: DockerEngineEnvironment, *, inside: bool = False) -> str:
    return (await environment.exec(f"{IN_SHELL}\n{LOOK}" if inside else LOOK)).stdout or ""


async def test_a_trial_has_no_exec_session_and_no_archive(tmp_path: Path, calls: Counter[str]) -> None:
    host, _ = local_host(SOLVE, environment_kwargs={"own_network": True})
    trajectory = await host.run(request(make_task(tmp_path), tmp_path))
    await drain()
    assert trajectory.reward == 1.0, trajectory.detail
    once = ("create_container", "start", "inspect_container", "attach_socket")
    assert dict(calls) == dict.fromkeys((*once, "wait", "remove_container"), 1)


async def test_they_show_commands_what_an_exec_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        first = await seen(environment), await seen(environment, inside=True)
        assert "SHLVL" in first[0]
        environment._shells.drop()  # pyright: ignore[reportPrivateUsage]
        assert (await seen(environment), await seen(environment, inside=True)) == first
        assert calls["exec_create"] == 0
        environment._shells.drop()  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(runtime_shell, "noted", lambda _: None)
        assert (await seen(environment), await seen(environment, inside=True)) == first
        assert calls["exec_create"] == 1
        count = "$(ps -eo args | grep -c '^bash --noprofile')"
        alone = f'for i in $(seq 600); do [ "{count}" = 1 ] && break; sleep 0.1; done; echo "{count}"'
        assert (await environment.exec(alone)).stdout == "1\n", "the others end with their streams"


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        ("mv /etc/passwd /etc/p; ln -s p /etc/passwd", None),
        ("true", {"binary_name": "false", "root": "/"}),
        ("true", {"binary_name": "no-such-runtime", "root": "/"}),
    ],
    ids=["users-are-a-link", "refusing", "missing"],
)
async def test_what_the_runtime_cannot_start_the_daemon_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str], agent: str, options: dict[str, str] | None
) -> None:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        await environment.exec(agent)
        environment._shells.drop()  # pyright: ignore[reportPrivateUsage]
        if options:
            read = json.loads
            monkeypatch.setattr(runtime_shell.json, "loads", lambda text: {**read(text), **options})
        assert (await environment.exec("echo up")).stdout == "up\n"
        assert calls["exec_create"] == 1


async def test_a_runtime_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime := tmp_path / "runtime").write_text("#!/bin/sh\nexec sleep 600\n")
    runtime.chmod(0o755)
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        read = json.loads
        monkeypatch.setattr(runtime_shell.json, "loads", lambda text: {**read(text), "binary_name": str(runtime)})
        began = time.monotonic()
        assert runtime_shell.runtime_shell(environment.container, ["true"], 0.2) is None
        assert time.monotonic() - began < 60


async def test_an_agents_phase_is_closed_without_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        await environment.exec("echo x > hello.txt; echo 1.2.3.4 x >> /etc/hosts; touch /logs/verifier/reward.txt")
        run = list[object]()
        monkeypatch.setattr(Shells, "run", lambda *given, **_: run.append(given))
        await environment.close_agent_phase(final=True)
        assert not run and environment.phases.mounted == {"/etc/hosts": "1.2.3.4 x\n"}


async def test_the_runtime_waits_for_no_pipe(tmp_path: Path) -> None:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        await environment.exec("rm /etc/group && mkfifo /etc/group", user="root")
        assert runtime_shell.runtime_shell(environment.container, ["true"], 600) is None


async def test_a_policy_that_kills_everything_ends_its_command_at_once(tmp_path: Path, calls: Counter[str]) -> None:
    async with started(write_task(tmp_path / "task"), RUN) as environment:
        began = time.monotonic()
        result = await environment.exec("echo before; head -c 300000 /dev/zero | tr '\\0' x; kill -9 -1; sleep 60")
        assert time.monotonic() - began < 50, "not after the sleep"
        assert result.return_code == 137 and (result.stdout or "").startswith("before\n")
        assert len(result.stdout or "") == 300000 + len("before\n")
        assert (await environment.exec("echo again")).stdout == "again\n"
        assert calls["exec_create"] == 0
        idle = await environment.exec("pkill -9 bash; true", user="nobody")
        assert idle.return_code is not None
        await environment.exec("(sleep 0.2; kill -9 -1) >/dev/null 2>&1 &")
        await asyncio.sleep(1)  # its shell is killed while it waits; on a busy machine, during a command that follows
        outputs = [(await environment.exec("echo again; sleep 0.2")).stdout for _ in range(5)]
        assert outputs[-1] == "again\n" and outputs.count("again\n") >= 4


async def test_a_policy_that_kills_everything_is_graded(tmp_path: Path) -> None:
    host, _ = local_host([answer("echo Hello > hello.txt; sync; kill -9 -1\n"), answer(complete=True)])
    trajectory = await host.run(request(make_task(tmp_path), tmp_path))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0), trajectory.detail


@pytest.mark.parametrize(
    "dockerfile",
    [BASE + "RUN useradd -m someone\nUSER someone\n", BASE + "RUN mv /bin/bash /bin/hidden\n"],
    ids=["another-user", "no-bash"],
)
async def test_images_without_one_use_exec_sessions(tmp_path: Path, calls: Counter[str], dockerfile: str) -> None:
    async with started(write_task(tmp_path / "task", dockerfile=dockerfile), RUN) as environment:
        calls.clear()
        assert (await environment.exec("echo up", user="root")).stdout == "up\n"
        assert "sleep 1000000000" in ((await environment.exec("cat /proc/1/cmdline")).stdout or "").replace("\0", " ")
    assert calls["attach_socket"] == 0


async def test_a_daemon_whose_processes_are_not_here_starts_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    def elsewhere(_: Any) -> int:
        raise FileNotFoundError("no such process")

    monkeypatch.setattr(first_shell, "first_process", elsewhere)
    for name in ("a", "b"):
        async with started(write_task(tmp_path / name), RUN) as environment:
            assert (await environment.exec("echo up; ls /proc/1/task/1/children >/dev/null")).stdout == "up\n"
    assert calls["attach_socket"] == 0 and calls["exec_create"] == 2
