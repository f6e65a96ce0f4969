"""Lists of a system's accounts, one a line: whether one has new accounts alone that are the work's. No I/O."""

from collections.abc import Collection
from itertools import zip_longest

LISTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
_GROUP, _USER = 4, 7  # fields of a line; the last of a group's has its members, the third a number
_MOST_NUMBER = 1 << 31


def only_adds(old: bytes, new: bytes | None, words: Collection[str], told: Collection[str] = ()) -> bool:
    """Return whether `new` has all lines of `old`, and nothing more but accounts, and `words` as members of old groups.

    New accounts have numbers of their own, and names of `words`, or such as are none of `told`.
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
