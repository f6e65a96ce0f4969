"""Errors that a user can act on; any other exception is a bug and keeps its traceback.

UserError                a mistake, or a fault outside this code: one message with field, value and fix
├── BackendError         the Tinker API refused, vanished or answered nonsense
│   ├── ServerLost       it went away, or came back without the adapter; a saved state can be restored
│   └── WeightsGone      it no longer has a saved state: deleted, expired, or lost with its database
├── EnvironmentFault     the place of the trials cannot be used at all (one failed trial is data, no error)
└── DiskFault            the disk of the run directory is full, over quota, read-only or broken
"""

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, override

from harbortrainer.commands import fitted

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Commands print its message as plain lines, without a traceback, and exit with 2."""

    @override
    def __str__(self) -> str:
        """The message with the commands of this installation."""
        return fitted(super().__str__())


def refuse(problems: Iterable[str]) -> None:
    """Raise one UserError with a line for each problem, if there is any."""
    if lines := list(problems):
        raise UserError("\n".join(lines))


def one_line(said: object, most: int = 200) -> str:
    """Return what an error or a program says, as one harmless line of at most `most` letters."""
    return harmless(" ".join(str(said).split())[:most])


def wrong_field(error: "ValidationError") -> str:
    """Return the first fault of a value that pydantic refuses: field, value, what is wrong."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ")
    return one_line(f"{where}: missing" if first["type"] == "missing" else f"{where}={first['input']!r}: {what}", 300)


def harmless(text: str) -> str:
    """Replace control characters: a policy may write some to control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def some_of(parts: Sequence[str], most: int) -> str:
    """Return the first parts, and how many more there are."""
    rest = len(parts) - most
    return "; ".join(parts[:most]) + (f"; and {rest} more" if rest > 0 else "")


def indented(text: str) -> str:
    """Set in all lines after the first, each made harmless: none can pass for another line of a log."""
    return harmless(text).replace("\n", "\n    ")


class BackendError(UserError):
    pass


class ServerLost(BackendError):
    pass


class WeightsGone(BackendError):
    pass


class EnvironmentFault(UserError):
    pass


class DiskFault(UserError):
    pass


def raised_here(error: BaseException) -> bool:
    """Return whether a line of this package raised it, not one of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(Path(__file__).parent)
