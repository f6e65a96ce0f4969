"""`harbortrainer COMMAND …`: one table of commands. What a command imports to work waits until its words are right."""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbortrainer.cli.arguments import read_arguments
from harbortrainer.cli.output import fields_help
from harbortrainer.durable.disk import telling
from harbortrainer.errors import UserError
from harbortrainer.setting import problems
from harbortrainer.stopping import SIGNAL_STATUS, Stop, signals_to

PIPE_STATUS = 141  # 128 + SIGPIPE


@dataclass(frozen=True, slots=True)
class Command:
    """`kind`: class of its fields, in a module that is quick to import. `work`: coroutine function of its arguments.

    `read`: makes the arguments of the words, where fields alone do not. `words`: fields that need no name.
    """

    usage: str
    about: str
    kind: str
    work: str
    words: tuple[str, ...] = ()
    read: str = ""
    stops: bool = False  # the work gets a Stop and ends in order by itself


_DOCTOR, _TASKS = "doctor.arguments", "qualify.arguments"
_EVALUATION, _REPLAY = "evaluation.arguments", "replay"
_PROBE = (
    "what a Tinker API does, on throw-away weights",
    f"{_DOCTOR}:ServerArgs",
    "doctor.servers:probe",
)
_LOG_LEVELS = {"doctor": logging.CRITICAL, "tasks": logging.ERROR}
_TABLE: dict[str, Command] = {
    "train": Command(
        "field=value ...", "GRPO over Harbor tasks through the Tinker API; --dry-run prints the plan",
        "config:Config", "train:train", read="train:checked", stops=True),
    "evaluate": Command(
        "field=value ...", "one policy or two on Harbor tasks; exit 1 if a task has no grade",
        f"{_EVALUATION}:EvalArgs", "evaluation.session:evaluate", read=f"{_EVALUATION}:parse"),
    "evaluate show": Command(
        "DIR [TRIAL]", "trials of a run or evaluation, or one whole conversation",
        f"{_EVALUATION}:ShowArgs", "evaluation.show:show", ("dir", "trial")),
    "evaluate export": Command(
        "DIR [STEP]", "conversations as JSON lines",
        f"{_EVALUATION}:ExportArgs", "evaluation.show:export", ("dir", "step")),
    "doctor": Command("field=value ...", *_PROBE),
    "doctor server": Command("[URL] field=value ...", *_PROBE, ("url",)),
    "doctor parity": Command(
        "A=URL B=URL ...", "whether two servers train and sample alike; exit 1 if not",
        f"{_DOCTOR}:ParityArgs", "doctor.servers:parity"),
    "doctor docker": Command(
        "field=value ...", "whether Docker can carry a run; exit 2 if not",
        f"{_DOCTOR}:DockerArgs", "doctor.docker:preflight"),
    "doctor clean": Command(
        "field=value ...", "what runs have left on Docker; exit 1 if anything",
        f"{_DOCTOR}:CleanArgs", "doctor.docker:clean"),
    "tasks check": Command(
        "DIR ...", "whether tasks can be trusted, by trials; exit 1 if one cannot",
        f"{_TASKS}:CheckArgs", "qualify.check:check", ("dirs",)),
    "tasks list": Command(
        "DIR ...", "tasks with family, digest and environment",
        f"{_TASKS}:ListArgs", "qualify.commands:list_tasks", ("dirs",)),
    "tasks show": Command(
        "TASK_DIR ...", "one task: settings, instruction, what identifies it",
        f"{_TASKS}:ListArgs", "qualify.commands:show_tasks", ("dirs",)),
    "tasks get": Command(
        "NAME@VERSION to=FOLDER", "a dataset of Harbor's registry, with digests",
        f"{_TASKS}:GetArgs", "qualify.commands:get", ("dirs",)),
    "tasks split": Command(
        "DIR ...", "training and held-out tasks as a run would have them",
        f"{_TASKS}:SplitArgs", "qualify.commands:split", ("dirs",)),
    "report": Command(
        "RUN_DIR ...", "one HTML page of a run, or of several drawn over each other; needs no server, no network",
        "report.arguments:ReportArgs", "report.write:report", ("run_dir",)),
    "replay": Command(
        "RUN_DIR field=value ...", "what other settings make of a run's trials; exit 1 if its datums cannot be rebuilt",
        f"{_REPLAY}.arguments:ReplayArgs", f"{_REPLAY}.replay:replayed", ("run_dir",), f"{_REPLAY}.arguments:parse"),
}  # fmt: skip
_PROGRAMS = tuple(dict.fromkeys(name.split()[0] for name in _TABLE))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: the command's, 2 a mistake or fault told in plain lines, 130 stopped by a signal, 75 by a limit of
    the run, 80 to 82 by a cap on spending (src/harbortrainer/budget/budget.py), 141 when its output is no longer read.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    stop = Stop()
    return run_command(lambda: _command(words, stop), stop)


def _command(words: list[str], stop: Stop) -> Coroutine[Any, Any, int]:
    if {"-h", "--help"} & set(words):
        return _print_help(next((name for name in _names(words) if name in _TABLE or _verbs(name)), ""))
    name = _find(words)
    command = _TABLE[name]
    logging.basicConfig(format="%(levelname)s: %(message)s", level=_LOG_LEVELS.get(words[0], logging.WARNING))
    left = words[len(name.split()) :]
    args = _load(command.read)(left) if command.read else _read(command, left)
    work = _load(command.work)
    return work(args, stop) if command.stops else work(args)


def _read(command: Command, words: Sequence[str]) -> Any:
    args = read_arguments(_load(command.kind), words, command.words)
    if found := list(problems(args)):
        raise UserError("\n".join(found))
    return args


def _names(words: Sequence[str]) -> list[str]:
    """Names that the first words may be, the longer one first."""
    return [" ".join(words[:2]), " ".join(words[:1])]


def _find(words: Sequence[str]) -> str:
    """The command that the first words name. Raises UserError."""
    if not words or words[0] not in _PROGRAMS:
        raise UserError(f"{words[0] if words else 'no command'}: unknown; one of {', '.join(_PROGRAMS)}")
    for name in _names(words):
        if name in _TABLE and not _is_verb(name, words):
            return name
    verb = words[1] if len(words) > 1 else "no command"
    raise UserError(f"{verb}: unknown; one of {', '.join(_verbs(words[0]))}")


def _is_verb(name: str, words: Sequence[str]) -> bool:
    """Whether the word behind a program that has verbs can only be meant as one of them."""
    return name in words and bool(_verbs(name)) and len(words) > 1 and words[1][:1] != "-" and "=" not in words[1]


def _verbs(program: str) -> list[str]:
    return [name.split()[1] for name in _TABLE if name.startswith(f"{program} ")]


async def _print_help(name: str) -> int:
    """Usage of the command and of those below it, then every field."""
    shown = [one for one in _TABLE if not name or one == name or one.startswith(f"{name} ")]
    heads = [f"harbortrainer {one} {_TABLE[one].usage}" for one in shown]
    width = max(map(len, heads))
    print("\n".join(f"{head:{width}}   {_TABLE[one].about}" for head, one in zip(heads, shown, strict=True)))
    if name in _TABLE:
        print(fields_help(_load(_TABLE[name].kind)))
    return 0


def _load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(f"harbortrainer.{module}"), name)


def run_command(prepare: Callable[[], Coroutine[Any, Any, int]], stop: Stop | None = None) -> int:
    """Read the environment files, then run the coroutine that `prepare` makes; Ctrl-C and SIGTERM ask `stop` to end it.

    A second signal leaves at once. Returns the exit status.
    """
    stop = stop or Stop()
    try:
        try:
            load_environment()
            with telling():
                return asyncio.run(_until_stopped(prepare(), stop))
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
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return stop.status or SIGNAL_STATUS


async def _until_stopped(work: Coroutine[Any, Any, int], stop: Stop) -> int:
    """One cancellation, clean-up awaited; unless the work heeds `stop` itself."""
    task = asyncio.ensure_future(work)
    stop.cancels(task)
    with signals_to(stop):
        return await task


def load_environment(folder: Path = Path()) -> None:
    """Read `.env.skyrl-tx` and `.env` where they exist; the shell's values win, then the former's."""
    from dotenv import load_dotenv

    for name in (".env.skyrl-tx", ".env"):
        load_dotenv(folder / name, override=False)


if __name__ == "__main__":
    sys.exit(main())
