"""Families of tasks by their names: as a user's pattern says, or in series (X_easy and X_hard, X-1 and X-2)."""

import re
from collections import Counter
from collections.abc import Sequence

from harbortrainer.errors import UserError

MOST = 0.5  # share of the names that have a sibling, above which a series is meant
LARGEST, FEWEST = 8, 10  # members of a family, and families: others are numbered tasks, which names tell nothing about
_LEVELS = "very_easy|very_hard|easy|medium|moderate|normal|hard|simple|basic|intermediate|advanced|expert"
_SUFFIX = re.compile(rf"[-_. ](?:{_LEVELS}|v?\d{{1,6}})$", re.IGNORECASE)


def name_families(names: Sequence[str], pattern: str | None) -> dict[str, str]:
    """Return the family of each name that has one.

    `pattern`: its first group is the family; "" = names have none; None = the name without its level, version or
    number, where more than MOST of all names share that with another one, and at most LARGEST with each. Raises
    UserError for a wrong pattern.
    """
    if pattern == "":
        return {}
    if pattern is not None:
        compiled = _compiled(pattern)
        found = {name: match[1] for name in names if (match := compiled.search(name)) and match[1]}
        if not found:
            raise UserError(f"family={pattern}: matches none of {len(names)} tasks, such as {names[0]}")
        return found
    stems = {name: _stem(name) for name in names}
    members = Counter(stems.values())
    found = {name: stem for name, stem in stems.items() if members[stem] > 1}
    sizes = Counter(found.values())
    series = len(found) > MOST * len(names) and len(sizes) >= FEWEST and max(sizes.values()) <= LARGEST
    return found if series else {}


def _stem(name: str) -> str:
    while cut := _SUFFIX.search(name):
        name = name[: cut.start()]
    return name


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"family={pattern}: no regular expression: {error}") from None
    if not compiled.groups:
        raise UserError(f"family={pattern}: has no group; put what names the family in parentheses: ^(.+)_[a-z]+$")
    return compiled
