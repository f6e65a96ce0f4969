"""What our own code raises inside Harbor, which keeps only an exception's class name and texts."""

import traceback
from collections.abc import Iterator
from contextlib import AsyncContextDecorator, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from src.disk import refuse
from src.errors import UserError

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo

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
