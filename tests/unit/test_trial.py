"""What surrounds a Harbor trial: cancelled once and awaited, bugs told from faults, loggers dropped."""

import asyncio
import gc
import logging
import weakref
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harbor.models.trial.result import ExceptionInfo

from src.rollout import trial as module
from src.rollout.harbor_log import HARBOR, forget_loggers, tame_harbor_log
from src.rollout.trial import raise_own_bug, run_to_end


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


async def test_a_late_trial_is_cancelled_and_cleaned_up() -> None:
    work = Work()
    work.may_end.set()
    with pytest.raises(TimeoutError):
        await run_to_end(work.run(), asyncio.timeout(0.01))
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


async def test_a_clean_up_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLEANUP_LIMIT_SEC", 0.02)
    work = Work()
    with pytest.raises(TimeoutError):
        await run_to_end(work.run(), asyncio.timeout(0.01))
    assert work.cancelled == 1 and not work.cleaned
    work.may_end.set()


async def test_results_and_errors_pass() -> None:
    async def fine() -> int:
        return 3

    async def broken() -> int:
        raise LookupError("x")

    assert await run_to_end(fine(), asyncio.timeout(5)) == 3
    with pytest.raises(LookupError):
        await run_to_end(broken(), asyncio.timeout(5))


def fault(kind: str, file: str) -> ExceptionInfo:
    traceback = f'Traceback\n  File "/lib/harbor/trial.py", line 1, in run\n  File "{file}", line 2, in f\n{kind}: x'
    return ExceptionInfo(
        exception_type=kind, exception_message="x", exception_traceback=traceback, occurred_at=datetime.now(UTC)
    )


def test_our_own_bugs_stop_the_run_and_faults_do_not() -> None:
    own = str(Path(module.__file__))
    with pytest.raises(RuntimeError, match="a bug in harbortrainer"):
        raise_own_bug(fault("TypeError", own))
    raise_own_bug(fault("RuntimeError", own))  # how an environment reports its faults
    raise_own_bug(fault("TypeError", "/lib/harbor/environments/docker.py"))


def test_loggers_of_a_trial_are_forgotten() -> None:
    with forget_loggers("s000001-p00-g01"):
        trial = weakref.ref(logging.getLogger(f"{HARBOR}.trial.s000001-p00-g01"))
        logging.getLogger(f"{HARBOR}.trial.s000001-p00-g01-a2")
    known = logging.Logger.manager.loggerDict
    assert f"{HARBOR}.trial.s000001-p00-g01" not in known and f"{HARBOR}.trial.s000001-p00-g01-a2" in known
    gc.collect()
    assert trial() is None


def test_harbors_log_is_quiet_and_its_warnings_come_once(caplog: pytest.LogCaptureFixture) -> None:
    tame_harbor_log()
    tame_harbor_log()
    logger = logging.getLogger(HARBOR)
    assert len(logger.handlers) == 1
    for _ in range(3):
        logger.getChild("trial.x").warning("task t: shared verifier")
        logger.info("noise")
    assert [record.getMessage() for record in caplog.records] == ["task t: shared verifier"]
