"""argv and environment -> Config. A wrong argument is one plain line, with the near field named."""

import asyncio
import difflib
import os
import re
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
from src.config_changes import FIELDS, ConfigHistory, from_json, to_json
from src.disk import telling
from src.errors import UserError
from src.run.directory import RunDirectory, find_run, open_run_directory
from src.signals import heeding
from src.stop import SIGNAL_STATUS, Stop

HELP = "python -m src.train field=value ...   GRPO over Harbor tasks through the Tinker API"
PIPE_STATUS = 141  # 128 + SIGPIPE
NOTHING: Mapping[str, Any] = MappingProxyType({})
__all__ = ["FIELDS", "load_environment", "parse", "read_arguments", "run_command", "tell_result", "to_json"]


def run_command(prepare: Callable[[], Coroutine[Any, Any, int]], stop: Stop | None = None) -> int:
    """Read the environment files, then run the coroutine that `prepare` makes; Ctrl-C and SIGTERM ask `stop` to end it.

    Exit status: the coroutine's, 2 a mistake or fault that the user can act on (told in plain lines), 130 stopped by a
    signal, 75 by a limit of the run's own, 141 when nobody reads its output any more. A second signal leaves at once.
    """
    stop = stop or Stop()

    def run() -> int:
        load_environment()
        with telling():
            return asyncio.run(_until_stopped(prepare(), stop))

    try:
        return _told(run)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return stop.status or SIGNAL_STATUS


def tell_result(arguments: Sequence[str], help_text: str, work: Callable[[Sequence[str]], object]) -> int:
    """Print the help where it is asked for or nothing is, else what `work` makes of the arguments.

    Exit status: 0 done, 2 nothing was asked for, or a mistake or fault, told in a line.
    """

    def run() -> int:
        asked = not arguments or bool({"-h", "--help"} & set(arguments))
        print(help_text if asked else work(arguments))
        return 0 if arguments else 2

    return _told(run)


def _told(run: Callable[[], int]) -> int:
    """Exit status of `run`: 2 for a UserError, which is printed; PIPE_STATUS when the reader of stdout has gone."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()  # here, not when Python exits: there a closed pipe cannot be caught
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        return PIPE_STATUS
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich's way to end; status 1 means something else here
            return PIPE_STATUS
        raise


async def _until_stopped(work: Coroutine[Any, Any, int], stop: Stop) -> int:
    """One cancellation, clean-up awaited; unless the work heeds `stop` itself."""
    task = asyncio.ensure_future(work)
    stop.cancels(task)
    with heeding(stop):
        return await task


def load_environment(folder: Path = Path()) -> None:
    """Read `.env.skyrl-tx` and `.env` where they exist; the shell's values win, then the former's."""
    from dotenv import load_dotenv

    for name in (".env.skyrl-tx", ".env"):
        load_dotenv(folder / name, override=False)


def parse(argv: Sequence[str]) -> Config:
    """`key=value` arguments to a Config. Values of a run that goes on come first: resume=RUN_DIR, or its run_name.

    Raises UserError for anything wrong and SystemExit(0) for --help.
    """
    run = _earlier_run(argv)
    if run is None:
        return read_arguments(Config, argv, HELP)
    history = ConfigHistory(run)
    config = read_arguments(Config, argv, HELP, chz.asdict(from_json(history.latest)))
    history.changes(config)  # refuses what must not be changed
    return chz.replace(config, resume=str(run.path))


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


def _earlier_run(argv: Sequence[str]) -> RunDirectory | None:
    if (path := _argument(argv, "resume")) is not None:
        return open_run_directory(path)
    name, usual = _argument(argv, "run_name"), Config(model_name="", tasks_dir="")
    return None if name is None else find_run(_argument(argv, "logs_dir") or usual.logs_dir, name)


def _argument(argv: Sequence[str], name: str) -> str | None:
    """The last value given for a field; None: none, or none by name."""
    values = [arg.split("=", 1)[1] for arg in argv if re.match(rf"-{{0,2}}{name}=", arg)]
    return values[-1] if values and values[-1] not in ("", "None") else None


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
