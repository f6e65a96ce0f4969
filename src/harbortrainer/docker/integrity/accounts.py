"""Lists of a system's accounts, one a line: whether one differs by accounts alone that are the work's. No I/O."""

import posixpath
from collections.abc import Collection
from itertools import zip_longest

from harbortrainer.docker.integrity.asked import PROGRAMS

LISTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
_GROUP, _USER, _SHADOW = 4, 7, 9  # fields of a line; the last of a group's has its members, of a user's its shell
_MOST_NUMBER = 1 << 31


def only_adds(old: bytes, new: bytes | None, words: Collection[str], told: Collection[str] = ()) -> bool:
    """Return whether `new` differs from `old` by accounts alone that are the work's.

    Every old line stays. An old group may get members of `words`; an old account of `words`, but for root, another
    password or a program of the system as its shell. A new account has a number of its own, not root's, and a name of
    `words`, or one that is not in `told`.
    """
    lines = [text.decode(errors="replace").split("\n") for text in (old, new or b"")]
    numbers = {_number(line.split(":")) for line in lines[0]} - {""}
    for before, after in zip_longest(*lines, fillvalue=""):
        if before == after:
            continue
        fields = after.split(":")
        if not (_has_more(before.split(":"), fields, words) if before else _is_new(fields, words, told, numbers)):
            return False
        numbers.add(_number(fields))
    return True


def _has_more(old: list[str], new: list[str], words: Collection[str]) -> bool:
    known = _members(old)
    if old[0] in words and old[0] != "root" and len(old) == len(new) == _SHADOW:
        return old[0] == new[0]
    if old[0] in words and _number(old) and len(old) == len(new) == _USER:
        return old[0] == new[0] and old[2:-1] == new[2:-1] and posixpath.dirname(new[-1]) in PROGRAMS
    is_same = len(old) == len(new) == _GROUP and old[:-1] == new[:-1] and known == _members(new)[: len(known)]
    return is_same and {*_members(new)[len(known) :]} <= {*words}


def _is_new(fields: list[str], words: Collection[str], told: Collection[str], numbers: Collection[str]) -> bool:
    number = fields[2] if len(fields) > 2 else ""
    is_root = bool(number) and not (number.isdecimal() and 0 < int(number) < _MOST_NUMBER)
    may_be = bool(fields[0]) and (fields[0] in words or fields[0] not in told)
    return may_be and not is_root and _number(fields) not in numbers


def _number(fields: list[str]) -> str:
    found = fields[2].lstrip("0") if len(fields) in (_GROUP, _USER) else ""
    return found if found.isdecimal() else ""


def _members(fields: list[str]) -> list[str]:
    return fields[-1].split(",") if len(fields) == _GROUP and fields[-1] else []
