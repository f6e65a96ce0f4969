"""Lists of a system's accounts, one a line: whether one has new accounts alone that an instruction names. No I/O."""

from collections.abc import Collection
from itertools import zip_longest

LISTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
_GROUP = 4  # fields of a group's line, the last of which has its members
_MOST_NUMBER = 1 << 31


def only_adds(old: bytes, new: bytes | None, words: Collection[str]) -> bool:
    """Return whether `new` has all lines of `old`, and nothing more but accounts and members of groups in `words`."""
    lines = [text.decode(errors="replace").split("\n") for text in (old, new or b"")]
    return all(_is_same_or_new(before, after, words) for before, after in zip_longest(*lines, fillvalue=""))


def _is_same_or_new(before: str, after: str, words: Collection[str]) -> bool:
    if before == after:
        return True
    old, new = before.split(":"), after.split(":")
    if before:
        known = _members(old)
        is_group = len(old) == len(new) == _GROUP and old[:-1] == new[:-1] and known == _members(new)[: len(known)]
        return is_group and {*_members(new)[len(known) :]} <= {*words}
    is_root = bool(new[2:] and new[2]) and not (new[2].isdecimal() and 0 < int(new[2]) < _MOST_NUMBER)
    return not is_root and {new[0], *_members(new)} <= {*words}


def _members(fields: list[str]) -> list[str]:
    return fields[-1].split(",") if len(fields) == _GROUP and fields[-1] else []
