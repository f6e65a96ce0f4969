"""Harbor beside its trials: keeps the types of faults, quiets its log, imports it without litellm, writes job files."""

import contextlib
import functools
import importlib
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncContextDecorator, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, cast, override

from harbortrainer.durable.disk import refuse
from harbortrainer.durable.facts import fact
from harbortrainer.durable.files import replace_text
from harbortrainer.errors import UserError, raised_here

if TYPE_CHECKING:
    from harbor.models.task.config import TaskConfig
    from harbor.models.trial.result import ExceptionInfo

HARBOR = "harbor.utils.logger"
MODE = "HARBORTRAINER_MODE"  # train or eval, in the environment of the verifier's commands only
_NO_HOST = "Harbor could not determine or estimate the inference endpoint"  # it is inside the container
_BUGS = (TypeError, AttributeError, NameError, KeyError, IndexError, AssertionError)
_noted: ContextVar[list[Exception] | None] = ContextVar("noted", default=None)


class _Boundary(AsyncContextDecorator):
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Exception) and (noted := _noted.get()) is not None:
            noted.append(error)


boundary = _Boundary()  # decorates the methods that Harbor calls, since Harbor keeps only the texts of errors


@contextmanager
def noting() -> Iterator[list[Exception]]:
    """Collect the errors that leave a `boundary` within the block, also in tasks that it starts."""
    token = _noted.set(noted := [])
    try:
        yield noted
    finally:
        _noted.reset(token)


def raise_noted(fault: "ExceptionInfo", noted: list[Exception], folder: Path) -> None:
    """Raise `fault` if it must stop the run rather than fail the trial whose files are in `folder`.

    Raises UserError, DiskFault for a disk that cannot be written, RuntimeError for a bug in this package.
    """
    recorded = fault.exception_type, fault.exception_message
    for error in noted:
        if (type(error).__name__, str(error)) != recorded:
            continue
        refuse(error, folder)
        if isinstance(error, UserError):
            raise error
        if isinstance(error, _BUGS) and raised_here(error):
            raise RuntimeError("a bug in harbortrainer ended a trial") from error


class _Forward(logging.Handler):
    """Passes Harbor's warnings to the package's log, each text once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: set[str] = set()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._seen and not text.startswith(_NO_HOST):
            self._seen.add(text)
            logging.getLogger("harbortrainer.harbor").log(record.levelno, "%s", text)


def quiet_harbor_log() -> None:
    """Keep Harbor's log off the terminal but for warnings. Call it after Harbor is imported; repeating is harmless."""
    logging.raiseExceptions = False  # a full disk stops the run with one line, not with tracebacks of a trial's log
    logger = logging.getLogger(HARBOR)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if not any(isinstance(handler, _Forward) for handler in logger.handlers):
        logger.addHandler(_Forward())


@contextmanager
def forget_loggers(trial_name: str) -> Iterator[None]:
    """Remove after the block the loggers made for a trial, which Python otherwise keeps."""
    try:
        yield
    finally:
        known = logging.Logger.manager.loggerDict
        for name in [name for name in list(known) if trial_name in name.split(".")]:  # threads make others meanwhile
            logger = known.pop(name)
            for parent in accumulate(name.split("."), "{}.{}".format):
                holder = known.get(parent)
                if isinstance(holder, logging.PlaceHolder) and isinstance(logger, logging.Logger):
                    holder.loggerMap.pop(logger, None)


class LiteLLM:
    """Replaces Harbor's client of hosted models, which TrainableTerminus2 never uses."""

    def __init__(self, **_: object) -> None:
        raise RuntimeError("litellm was left out of this process (src/harbortrainer/harbor.py)")


@contextmanager
def without_litellm() -> Iterator[None]:
    """Put empty modules in the place of `litellm` and Harbor's client for it; after the block they can be imported.

    A module of Harbor that was imported in the block keeps the empty `litellm` until `with_litellm`.
    """
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


def with_litellm() -> None:
    """Return Harbor's look-up of providers and keys the real litellm: agents with a client of their own need it."""
    config = importlib.import_module("harbor.llms.litellm_config")
    vars(config)["litellm"] = importlib.import_module("litellm")


def task_config(task_dir: Path) -> "TaskConfig":
    """Read what the task.toml of a task directory says. Raises OSError, ValueError."""
    return _parsed((task_dir / "task.toml").read_text())


@functools.lru_cache(maxsize=1)  # of one task, several things are asked one after another
def _parsed(toml: str) -> "TaskConfig":
    from harbor.models.task.config import TaskConfig

    return TaskConfig.model_validate_toml(toml)


@functools.cache
def hasten_task_files() -> None:
    """Let Harbor's filter and check of task files skip their work for a task without patterns and links.

    20 ms of CPU a trial less; 5 ms more by `_remember_digests`.
    """
    from harbor.models.task import file_filter, paths
    from harbor.models.task.file_filter import TaskFileFilter

    thorough, check = TaskFileFilter.is_excluded, paths.validate_input_tree

    def plain(of: TaskFileFilter) -> bool:
        if "plain" not in vars(of):
            vars(of)["plain"] = is_plain(of.task_dir)
        return vars(of)["plain"]

    @functools.wraps(thorough)
    def is_excluded(self: TaskFileFilter, path: Path) -> bool:
        return thorough(self, path) if not plain(self) or path.name == self.IGNORE_FILENAME else False

    @functools.wraps(check)
    def validate_input_tree(path: Path, root: Path, *, exclude: Callable[[Path], bool] | None = None) -> None:
        of = getattr(exclude, "__self__", None)
        if not (isinstance(of, TaskFileFilter) and of.task_dir == root and root in path.parents and plain(of)):
            check(path, root, exclude=exclude)

    TaskFileFilter.is_excluded = is_excluded
    paths.validate_input_tree = file_filter.validate_input_tree = validate_input_tree
    _remember_digests()


def _remember_digests() -> None:
    """Let Harbor digest a task's files once, and again when a stat of one changed; with links among them always."""
    from harbor import __version__
    from harbor.models.task.task import Task
    from harbor.publisher.packager import Packager

    content, checksum = Packager.compute_content_hash, cast("Callable[[Task], str]", Task.checksum.fget)

    def remembered(task: Path, name: str, find: Callable[[], Any]) -> Any:
        return fact(task, f"{name} of Harbor {__version__}", find) if is_plain(task) else find()

    def compute_content_hash(task_dir: Path) -> tuple[str, list[Path]]:
        def find() -> tuple[str, list[str]]:
            digest, files = content(task_dir)
            return digest, list(map(str, files))

        digest, files = remembered(task_dir.resolve(), "content", find)
        return digest, list(map(Path, files))

    Packager.compute_content_hash = staticmethod(compute_content_hash)
    of = property(lambda self: remembered(self.paths.task_dir, "checksum", lambda: checksum(self)))
    Task.checksum = of  # pyright: ignore[reportAttributeAccessIssue]


def is_plain(task: Path) -> bool:
    """Return whether no file of the task has patterns of files to leave out, and no link could lead to one."""
    from harbor.models.task.file_filter import TaskFileFilter

    rules, folders = TaskFileFilter.IGNORE_FILENAME, [str(task)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == rules or entry.is_symlink():
                    return False
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return True


def write_job_files(trials_dir: Path, n_total_trials: int) -> None:
    """Write a job's files over the trials on disk; `n_total_trials`: how many the batch has. Raises DiskFault.

    The job's reward is the mean over graded trials; Harbor's own counts ungraded ones as 0.
    """
    from harbor.models.job.config import JobConfig
    from harbor.models.job.result import JobResult, JobStats
    from harbor.models.trial.result import TrialResult
    from pydantic import ValidationError

    if not trials_dir.is_dir():  # its run was ended before a trial began
        return
    results: list[TrialResult] = []
    for path in sorted(trials_dir.glob("*/result.json")):
        try:
            results.append(TrialResult.model_validate_json(path.read_bytes()))
        except ValidationError:  # incomplete, since an earlier process was killed; its trial runs again
            continue
    now = datetime.now(UTC)
    config = JobConfig(
        job_name=trials_dir.name,
        jobs_dir=trials_dir.parent,
        agents=[r.config.agent.model_copy(update={"kwargs": {}, "name": r.agent_info.name}) for r in results[:1]],
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
    replace_text(trials_dir / "config.json", config.model_dump_json(indent=2, exclude_defaults=True))
    replace_text(trials_dir / "result.json", result.model_dump_json(indent=2, exclude={"trial_results"}))
