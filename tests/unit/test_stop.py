"""Who asks a run to end, what counts, and what a second signal does."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from harbortrainer import stopping
from harbortrainer.cli.main import run_command
from harbortrainer.config import Config
from harbortrainer.stopping import LIMIT_STATUS, SIGNAL_STATUS, Stop
from tests.conftest import ROOT


def limited(**fields: Any) -> tuple[Stop, list[str]]:
    stop, said = Stop(), []
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": "."} | fields
    stop.limit(Config(**given), said.append)
    return stop, said


async def test_the_first_request_counts_and_says_what_happens() -> None:
    stop, said = limited()
    stop.request("SIGINT", SIGNAL_STATUS)
    stop.request("SIGTERM", 7)
    assert (stop.why, stop.status, stop.lets_end) == ("SIGINT", SIGNAL_STATUS, False)
    assert len(said) == 1 and said[0].startswith("SIGINT: running trials are cancelled")


async def test_max_trials_counts_those_of_earlier_processes_and_lets_the_last_ones_end() -> None:
    stop, said = limited(max_trials=5)
    stop.limit_trials(5, started=3)
    assert [stop.may_start() for _ in range(4)] == [True, True, False, False]
    assert stop.lets_end and stop.status == LIMIT_STATUS
    assert len(said) == 1 and said[0].startswith("max_trials=5 were started: running trials may finish")


async def test_max_wall_sec() -> None:
    stop, _ = limited(max_wall_sec=0.01)
    async with asyncio.timeout(600):
        await stop.wait()
    assert stop.status == LIMIT_STATUS and "max_wall_sec=0.01" in stop.why


@pytest.mark.parametrize("polled", [False, True])
def test_a_request_cancels_the_command_unless_it_polls(polled, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    stop = Stop()

    async def command() -> int:
        if not polled:
            stop.request("max_wall_sec=1 are over", LIMIT_STATUS)
            await asyncio.Event().wait()
        with stop.polled():
            os.kill(os.getpid(), signal.SIGINT)
            await stop.wait()
            await asyncio.sleep(0)
        return stop.status

    assert run_command(command, stop) == (SIGNAL_STATUS if polled else LIMIT_STATUS)
    assert capsys.readouterr().err == ("" if polled else "stopped\n")


STUBBORN = """
import sys, time
from harbortrainer.cli.main import run_command
from harbortrainer.stopping import Stop

stop = Stop()
stop.resume_hint = "resume with: python -m src.train resume=X"

async def command():
    with stop.polled():
        print("ready", flush=True)
        await stop.wait()
        print("asked", flush=True)
        time.sleep(600)

sys.exit(run_command(command, stop))
"""


def test_a_second_signal_leaves_at_once_even_when_the_loop_is_blocked() -> None:
    """tests/unit/test_display.py has a loop that waits."""
    command = [sys.executable, "-c", STUBBORN]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)  # as a script around us does: the same press of Ctrl-C
    deadline = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    _, told = process.communicate()
    assert process.returncode == SIGNAL_STATUS
    assert "stopped immediately; resume with: python -m src.train resume=X" in told


def test_a_lost_terminal_is_a_first_signal_and_never_a_second(monkeypatch, tmp_path) -> None:
    """A shell passes SIGHUP on, which the kernel has sent already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stopping, "ONE_PRESS_SEC", 0)
    stop = Stop()

    async def command() -> int:
        with stop.polled():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await stop.wait()
        assert stop.why == "SIGHUP"
        return stop.status

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    try:
        assert run_command(command, stop) == SIGNAL_STATUS
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_was_ignored_before_stays_ignored(monkeypatch, tmp_path) -> None:
    """A shell starts its background jobs so; the script around us sends SIGTERM instead."""
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def command() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        return 0

    try:
        assert run_command(command) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
