"""Words of a command line -> settings. A wrong word is one plain line, with the nearest field named."""

import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import chz
from chz.blueprint import (
    Blueprint,
    ExtraneousBlueprintArg,
    InvalidBlueprintArg,
    MissingBlueprintArg,
)

from src.config import FORMER
from src.errors import UserError
from src.setting import settings

NOTHING: Mapping[str, Any] = MappingProxyType({})


def read_arguments[T](
    kind: type[T], argv: Sequence[str], words: Sequence[str] = (), saved: Mapping[str, Any] = NOTHING
) -> T:
    """`name=value` (a leading `--` is allowed) over saved values. `--name` is name=true, `--json` is json=-.

    `words`: the fields that take words without a name, in this order; a last one that is a tuple takes all that are
    left. Raises UserError for anything wrong.
    """
    plain = [word for word in argv if _is_plain(word)]
    named = [_named(kind, word) for word in argv if not _is_plain(word)]
    taken, left = _by_field(kind, plain, words)
    try:
        blueprint = Blueprint(kind).apply(dict(saved), layer_name="saved").apply(taken, layer_name="words")
        return blueprint.make_from_argv([*named, *left], allow_hyphens=True)
    except ExtraneousBlueprintArg as error:
        raise UserError(_unknown_field(str(error), tuple(settings(kind)))) from None
    except MissingBlueprintArg as error:
        names = [name.strip() for name in str(error).rsplit(":", 1)[-1].split(",")]
        how = " ".join(name.upper() if name in words else f"{name}=…" for name in names)
        raise UserError(f"missing: {', '.join(names)} (give {how})") from None
    except InvalidBlueprintArg as error:
        raise UserError(_wrong_type(str(error))) from None
    except ValueError as error:  # chz's answer to an argument without "="
        raise UserError(" ".join(str(error).split())) from None


def given(argv: Sequence[str], name: str) -> str | None:
    """The last value that the words give a field, before anything else is read; None: none, or none by name."""
    values = [word.split("=", 1)[1] for word in argv if re.match(rf"-{{0,2}}{name}=", word)]
    return values[-1] if values and values[-1] not in ("", "None") else None


def _is_plain(word: str) -> bool:
    """A path may have "=" in it, behind a "/"."""
    return not word.startswith("-") and ("=" not in word or "/" in word.split("=", 1)[0])


def _named(kind: type, word: str) -> str:
    if not word.startswith("--") or "=" in word:
        return word
    name = word[2:].replace("-", "_")
    if name == "json":
        return "json=-"
    return f"{name}=true" if chz.chz_fields(kind).get(name) and settings(kind)[name].default is False else word


def _by_field(kind: type, plain: Sequence[str], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values by field, and the words that no field takes."""
    taken: dict[str, Any] = {}
    left = list(plain)
    for name in words:
        if not left:
            break
        if typing.get_origin(chz.chz_fields(kind)[name].final_type) is tuple:
            taken[name], left = tuple(left), []
        else:
            taken[name] = left.pop(0)
    return taken, left


def _unknown_field(message: str, fields: Sequence[str]) -> str:
    match = re.search(r"argument '([^']+)'", message)
    name = match.group(1) if match else "?"
    if name in FORMER:
        return f"{name}: no longer a setting; {FORMER[name].instead}"
    near = difflib.get_close_matches(name, fields, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "see --help for the fields"
    return f"{name}: no such field; {hint}"


def _wrong_type(message: str) -> str:
    match = re.search(r"argument '(.*?)' provided for param '([^']+)'", message, re.DOTALL)
    value, name = (match.group(1), match.group(2)) if match else ("?", "?")
    cast = re.search(r"Could not cast '.*?' to (.+)", message)
    wanted = cast.group(1).strip() if cast else "of another type"
    if wanted.startswith("Literal["):
        wanted = "one of " + wanted.removeprefix("Literal[").rstrip("]").replace("'", "")
    return f"{name}={value}: must be {wanted}; see --help"
