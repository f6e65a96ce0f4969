"""argv and environment -> Config. A wrong argument is one plain line, with the near field named."""

import asyncio
import difflib
import json
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import chz
from chz.blueprint import (
    Blueprint,
    EntrypointHelpException,
    ExtraneousBlueprintArg,
    InvalidBlueprintArg,
    MissingBlueprintArg,
)

from src.config import Config
from src.errors import UserError

# A resumed run keeps these: another value would mix two experiments in one directory.
FIXED_ON_RESUME = (
    "model_name",
    "lora_rank",
    "tasks_dir",
    "eval_split",
    "eval_tasks",
    "allow_family_overlap",
    "batch_size",
    "group_size",
    "seed",
)

HELP = "python -m src.train field=value ...   GRPO over Harbor tasks through the Tinker API"
NOTHING: Mapping[str, Any] = MappingProxyType({})
FIELDS = tuple(chz.chz_fields(Config))


def run_command(prepare: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Read the environment files, then run the coroutine that `prepare` makes; SIGTERM stops it like Ctrl-C.

    Exit status: the coroutine's, 2 a mistake or fault that the user can act on (told in plain lines), 130 stopped.
    """
    try:
        load_environment()
        return asyncio.run(_until_stopped(prepare()))
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130


async def _until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """One cancellation, clean-up awaited."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def load_environment(folder: Path = Path()) -> None:
    """Read `.env.skyrl-tx` and `.env` where they exist; the shell's values win, then the former's."""
    from dotenv import load_dotenv

    for name in (".env.skyrl-tx", ".env"):
        load_dotenv(folder / name, override=False)


def parse(argv: Sequence[str]) -> Config:
    """`key=value` arguments to a Config; with resume=RUN_DIR its saved values come first.

    Raises UserError for anything wrong and SystemExit(0) for --help.
    """
    saved = _saved_config(argv)
    config = read_arguments(Config, argv, HELP, saved or {})
    if saved is not None:
        _refuse_changes(saved, config)
    return config


def read_arguments[T](kind: type[T], argv: Sequence[str], head: str, saved: Mapping[str, Any] = NOTHING) -> T:
    """`key=value` arguments (a leading `--` is allowed) over saved values to a chz object; --help begins with `head`.

    Raises UserError for anything wrong and SystemExit(0) for --help.
    """
    try:
        blueprint = Blueprint(kind).apply(dict(saved), layer_name="resumed run")
        return blueprint.make_from_argv(list(argv), allow_hyphens=True)
    except EntrypointHelpException as help_text:
        text = str(help_text)
        print(f"{head}\n\n{text[text.index('Arguments:') :].rstrip()}")
        raise SystemExit(0) from None
    except ExtraneousBlueprintArg as error:
        raise UserError(_unknown_field(str(error), tuple(chz.chz_fields(kind)))) from None
    except MissingBlueprintArg as error:
        names = str(error).rsplit(":", 1)[-1].strip()
        raise UserError(f"missing: {names} (give {' '.join(f'{n.strip()}=…' for n in names.split(','))})") from None
    except InvalidBlueprintArg as error:
        raise UserError(_wrong_type(str(error))) from None
    except ValueError as error:  # chz's answer to an argument without "="
        raise UserError(" ".join(str(error).split())) from None


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return json.loads(json.dumps(chz.asdict(config)))


def _saved_config(argv: Sequence[str]) -> dict[str, Any] | None:
    values = [arg.split("=", 1)[1] for arg in argv if re.match(r"-{0,2}resume=", arg)]
    if not values or values[-1] in ("", "None"):
        return None
    from src.run.directory import open_run_directory, read_config

    saved = {k: v for k, v in read_config(open_run_directory(values[-1])).items() if k in FIELDS and k != "resume"}
    return saved | {"eval_tasks": tuple(saved.get("eval_tasks", ()))}


def _refuse_changes(saved: dict[str, Any], config: Config) -> None:
    for name in FIXED_ON_RESUME:
        before, now = saved.get(name), getattr(config, name)
        if name in saved and before != now:
            raise UserError(
                f"{name}={now}: {config.resume} was started with {name}={before}; leave it out or start a new run"
            )


def _unknown_field(message: str, fields: Sequence[str]) -> str:
    match = re.search(r"argument '([^']+)'", message)
    name = match.group(1) if match else "?"
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
