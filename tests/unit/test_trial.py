"""What surrounds a Harbor trial: cancelled once and awaited, bugs told from faults, loggers dropped."""

import asyncio
import errno
import gc
import json
import logging
import threading
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from harbor.models.trial.result import ExceptionInfo

from harbortrainer.errors import DiskFault, EnvironmentFault
from harbortrainer.harbor import HARBOR, boundary, forget_loggers, noting, quiet_harbor_log, raise_noted
from harbortrainer.venues.harbor.outcome import read_reward
from harbortrainer.venues.harbor.trial import run_to_end
from tests.support.virtual_time import in_virtual_time


class Work:
    """A trial that cleans up in several steps, and notes how often it was cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.cleaned = False
        self.started = asyncio.Event()
        self.cleaning = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self) -> str:
        try:
            self.started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.cleaning.set()
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            self.cleaned = True
            raise
        return "never"


async def test_cancelling_twice_reaches_the_trial_once_and_waits_for_its_clean_up() -> None:
    work = Work()
    outer = asyncio.create_task(run_to_end(work.run(), asyncio.timeout(None)))
    await work.started.wait()
    outer.cancel()
    await work.cleaning.wait()
    outer.cancel()
    await asyncio.sleep(0)
    assert not outer.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert work.cleaned and work.cancelled == 1


async def test_cancelled_while_a_late_trial_cleans_up_is_cancelled() -> None:
    work = Work()
    outer = asyncio.create_task(run_to_end(work.run(), asyncio.timeout(0.01)))
    await work.cleaning.wait()
    outer.cancel()
    await asyncio.sleep(0)
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert work.cleaned and work.cancelled == 1


def test_a_clean_up_that_hangs_is_given_up() -> None:
    async def run() -> None:
        work = Work()
        with pytest.raises(TimeoutError):
            await run_to_end(work.run(), asyncio.timeout(0.01))
        assert work.cancelled == 1 and not work.cleaned
        work.may_end.set()

    in_virtual_time(run())


@boundary
async def crossing(call: Callable[[], object]) -> None:
    call()


async def harbor(call: Callable[[], object]) -> ExceptionInfo:
    """Runs our code in a task of its own and keeps names and texts, as Harbor does."""
    try:
        await asyncio.wait_for(crossing(call), 600)
    except Exception as error:  # noqa: BLE001 as Harbor does
        return ExceptionInfo.from_exception(error)
    raise AssertionError("nothing was raised")


def raising(error: Exception) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "stops"),
    [
        (lambda: read_reward(cast(Any, 3)), RuntimeError),  # a TypeError in our code
        (lambda: json.loads(cast(Any, 3)), None),  # one in a library's
        (raising(RuntimeError("timed out")), None),  # how an environment reports its faults
        (raising(EnvironmentFault("Docker is away")), EnvironmentFault),
        (raising(OSError(errno.ENOSPC, "full")), DiskFault),
        (raising(FileNotFoundError(errno.ENOENT, "gone")), None),
    ],
)
async def test_what_crossed_into_harbor_stops_the_run_or_fails_the_trial(
    tmp_path: Path, call: Callable[[], object], stops: type[Exception] | None
) -> None:
    with noting() as noted:
        recorded = await harbor(call)
    if stops is None:
        raise_noted(recorded, noted, tmp_path)
        return
    with pytest.raises(stops):
        raise_noted(recorded, noted, tmp_path)
    raise_noted(recorded.model_copy(update={"exception_message": "another"}), noted, tmp_path)  # Harbor dealt with ours
    raise_noted(recorded, [], tmp_path)  # of the same name and text, but Harbor's


def test_loggers_of_a_trial_are_forgotten() -> None:
    with forget_loggers("s000001-p00-g01"):
        trial = weakref.ref(logging.getLogger(f"{HARBOR}.trial.s000001-p00-g01"))
        logging.getLogger(f"{HARBOR}.trial.s000001-p00-g01-a2")
    known = logging.Logger.manager.loggerDict
    assert f"{HARBOR}.trial.s000001-p00-g01" not in known and f"{HARBOR}.trial.s000001-p00-g01-a2" in known
    gc.collect()
    assert trial() is None


def test_a_logger_that_a_thread_makes_meanwhile_ends_no_trial() -> None:
    class Slow(str):
        """A name; while it is compared, another thread asks for a logger for the first time."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            thread = threading.Thread(target=logging.getLogger, args=(f"first.use.{uuid.uuid4()}",))
            thread.start()
            thread.join()
            return str.__eq__(self, other)

    logging.getLogger("of.a.library")
    with forget_loggers(Slow("s000001-p00-g02")):
        pass


def test_harbors_log_is_quiet_and_its_warnings_come_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(HARBOR)
    logger.handlers.clear()
    quiet_harbor_log()
    quiet_harbor_log()
    assert len(logger.handlers) == 1
    for _ in range(3):
        logger.getChild("trial.x").warning("task t: shared verifier")
        logger.info("noise")
    assert [record.getMessage() for record in caplog.records] == ["task t: shared verifier"]
