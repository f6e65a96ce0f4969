"""What we need of Harbor beside its trials: typed faults, its log, its agent without litellm, its job files."""

import traceback
from collections.abc import Iterator
from contextlib import AsyncContextDecorator, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from harbortrainer.durable.disk import refuse
from harbortrainer.errors import UserError

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo
import logging
import os
import sys
import uuid
from datetime import UTC, datetime
from itertools import accumulate
from statistics import fmean
from types import ModuleType
from typing import override

from harbortrainer.durable.disk import disk_errors

if TYPE_CHECKING:
    from harbor.models.trial.config import AgentConfig
    from harbor.models.trial.result import TrialResult


_SOURCE = Path(__file__).resolve().parents[1]
_BUGS = (TypeError, AttributeError, NameError, KeyError, IndexError, AssertionError)
_noted: ContextVar[list[Exception] | None] = ContextVar("noted", default=None)


class _Boundary(AsyncContextDecorator):
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Exception) and (noted := _noted.get()) is not None:
            noted.append(error)


boundary = _Boundary()  # decorates the methods that Harbor calls


@contextmanager
def noting() -> Iterator[list[Exception]]:
    """Collect what crosses a `boundary` within the block, in the tasks that it starts too."""
    token = _noted.set(noted := [])
    try:
        yield noted
    finally:
        _noted.reset(token)


def raise_noted(fault: "ExceptionInfo", noted: list[Exception], folder: Path) -> None:
    """Raise what must stop the run rather than fail the trial whose files are in `folder`.

    That is a UserError, DiskFault for a disk that cannot be written, and RuntimeError for a bug in our code.
    """
    recorded = fault.exception_type, fault.exception_message
    for error in noted:
        if (type(error).__name__, str(error)) != recorded:
            continue
        refuse(error, folder)
        if isinstance(error, UserError):
            raise error
        if isinstance(error, _BUGS) and _is_ours(error):
            raise RuntimeError("a bug in harbortrainer ended a trial") from error


def _is_ours(error: Exception) -> bool:
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(_SOURCE)


HARBOR = "harbor.utils.logger"


class _Forward(logging.Handler):
    """Harbor's warnings to our own log, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[str] = set()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._seen:
            self._seen.add(text)
            logging.getLogger("harbortrainer.harbor").log(record.levelno, "%s", text)


def quiet_harbor_log() -> None:
    """Call once Harbor is imported; calling it again changes nothing."""
    logging.raiseExceptions = False  # a trial's log on a full disk: the run stops with one line, not with tracebacks
    logger = logging.getLogger(HARBOR)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if not any(isinstance(handler, _Forward) for handler in logger.handlers):
        logger.addHandler(_Forward())


@contextmanager
def forget_loggers(trial_name: str) -> Iterator[None]:
    """Afterwards drop the loggers that were made for a trial: Python keeps them all otherwise."""
    try:
        yield
    finally:
        known = logging.Logger.manager.loggerDict
        for name in [name for name in known if trial_name in name.split(".")]:
            logger = known.pop(name)
            for parent in accumulate(name.split("."), "{}.{}".format):
                holder = known.get(parent)
                if isinstance(holder, logging.PlaceHolder) and isinstance(logger, logging.Logger):
                    holder.loggerMap.pop(logger, None)


class LiteLLM:
    """Stands for Harbor's client of hosted models, which a TrainableTerminus2 never makes."""

    def __init__(self, **_: object) -> None:
        raise RuntimeError("litellm was left out of this process (src/harbortrainer/harbor.py)")


@contextmanager
def without_litellm() -> Iterator[None]:
    """Within it, `litellm` and Harbor's client on it are empty modules; afterwards they can be imported as ever."""
    if "litellm" in sys.modules:
        yield
        return
    client = ModuleType("harbor.llms.lite_llm")
    vars(client)["LiteLLM"] = LiteLLM
    stand_ins = {"litellm": ModuleType("litellm"), client.__name__: client}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def write_job_files(trials_dir: Path, n_total_trials: int) -> None:
    """Summarise the trials that are on disk; `n_total_trials`: how many the batch asked for. Raises DiskFault.

    The reward of the list of jobs is the mean over graded trials: Harbor's own counts those without a grade as 0.
    """
    from harbor.models.job.config import JobConfig
    from harbor.models.job.result import JobResult, JobStats
    from harbor.models.trial.result import TrialResult
    from pydantic import ValidationError

    results = []
    for path in sorted(trials_dir.glob("*/result.json")):
        try:
            results.append(TrialResult.model_validate_json(path.read_bytes()))
        except ValidationError:  # cut off when an earlier process was killed; its trial runs again
            continue
    now = datetime.now(UTC)
    config = JobConfig(
        job_name=trials_dir.name,
        jobs_dir=trials_dir.parent,
        agents=[_agent(results[0])] if results else [],
        tasks=list({result.config.task.path: result.config.task for result in results}.values()),
    )
    result = JobResult(
        id=uuid.uuid5(uuid.NAMESPACE_URL, str(trials_dir.resolve())),
        started_at=min((r.started_at for r in results if r.started_at), default=now),
        updated_at=now,
        finished_at=now,
        n_total_trials=n_total_trials,
        stats=JobStats.from_trial_results(results, n_total_trials=n_total_trials),
    )
    for evaluated in result.stats.evals.values():
        rewards = [value for value, trials in evaluated.reward_stats.get("reward", {}).items() for _ in trials]
        evaluated.metrics = [{"mean": fmean(rewards)}] if rewards else []
    _write(trials_dir / "config.json", config.model_dump_json(indent=2, exclude_defaults=True))
    _write(trials_dir / "result.json", result.model_dump_json(indent=2, exclude={"trial_results"}))


def _agent(result: "TrialResult") -> "AgentConfig":
    """As the list of jobs names it."""
    return result.config.agent.model_copy(update={"kwargs": {}, "name": result.agent_info.name})


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        temporary.write_text(text)
        os.replace(temporary, path)
