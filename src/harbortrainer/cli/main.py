"""`harbortrainer COMMAND …`: the table of commands, and what runs one. Heavy imports wait for checked words."""

import asyncio
import contextlib
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import getproxies

from harbortrainer.cli.arguments import read_arguments
from harbortrainer.cli.output import fields_help
from harbortrainer.cli.scripts import find_script, page, run_script
from harbortrainer.commands import SCRIPTS, fitted
from harbortrainer.durable.disk import disk_errors
from harbortrainer.errors import UserError, harmless, refuse
from harbortrainer.setting import problems
from harbortrainer.stopping import PIPE_STATUS, SIGNAL_STATUS, Stop, drop_output, signals_to


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table; paths are MODULE:NAME within the package.

    `kind`: class of its fields, in a module that is quick to import. `work`: coroutine function of its arguments.
    `words`: fields that need no name. `read`: function from words to arguments, "" = read the fields of `kind`.
    """

    usage: str
    about: str
    kind: str
    work: str
    words: tuple[str, ...] = ()
    read: str = ""
    stops: bool = False  # the work takes a Stop and shuts itself down


LOOPBACK = "localhost,127.0.0.1,::1"
_DOCTOR, _TASKS = "doctor.arguments", "qualify.arguments"
_EVALUATION = "evaluation.arguments"
_LOG_LEVELS = {"doctor": logging.CRITICAL, "tasks": logging.ERROR}
TABLE: dict[str, Command] = {
    "train": Command(
        "field=value ...", "GRPO over Harbor tasks through the Tinker API; --dry-run prints the plan",
        "train:TrainArgs", "train:train", read="train:checked", stops=True),
    "sft": Command(
        "field=value ...", "supervised fine-tuning on conversations or earlier trials; --dry-run prints the plan",
        "sft.arguments:SftArgs", "sft.arguments:sft", read="sft.arguments:checked", stops=True),
    "evaluate": Command(
        "field=value ...", "evaluate one or two policies on Harbor tasks; exit 1 if a task has no grade",
        f"{_EVALUATION}:EvalArgs", "evaluation.session:evaluate", read=f"{_EVALUATION}:parse"),
    "evaluate show": Command(
        "DIR [TRIAL]", "list the trials of a run or evaluation, or show one conversation",
        f"{_EVALUATION}:ShowArgs", "evaluation.show:show", ("dir", "trial")),
    "evaluate export": Command(
        "DIR [STEP]", "write conversations as JSON lines",
        f"{_EVALUATION}:ExportArgs", "evaluation.show:export", ("dir", "step")),
    "export": Command(
        "checkpoint=RUN[@STEP] to=DIR", "write trained weights as a PEFT adapter",
        "weights.arguments:ExportArgs", "weights.export:export"),
    "serve": Command(
        "checkpoint=RUN[@STEP] field=value ...", "answer OpenAI's and Anthropic's APIs with a trained policy",
        "serve.arguments:ServeArgs", "serve.serve:serve"),
    "doctor": (probe := Command(
        "field=value ...", "probe a Tinker API with a temporary adapter",
        f"{_DOCTOR}:ServerArgs", "doctor.servers:probe")),
    "doctor server": replace(probe, usage="[URL] field=value ...", words=("url",)),
    "doctor docker": Command(
        "field=value ...", "check that Docker can carry a run; exit 2 if not",
        f"{_DOCTOR}:DockerArgs", "doctor.docker:preflight"),
    "doctor hosts": Command(
        "field=value ...", "check the hosts of a Ray cluster for runs with hosts=ray; exit 1 if one cannot run trials",
        "bundled.hosts.arguments:HostsArgs", "bundled.hosts.survey:check"),
    "doctor clean": Command(
        "field=value ...", "list or remove what runs left on Docker; exit 1 if something could not be removed",
        f"{_DOCTOR}:CleanArgs", "doctor.docker:clean"),
    "tasks check": Command(
        "DIR ...", "check by trials that tasks can be trusted; exit 1 if one cannot",
        f"{_TASKS}:CheckArgs", "qualify.check:check", ("dirs",)),
    "tasks build": Command(
        "DIR ...", "make the images of tasks ahead of a run; exit 1 if one cannot be made",
        f"{_TASKS}:BuildArgs", "qualify.build:build", ("dirs",)),
    "tasks allow": Command(
        "TASK_DIR [/PATH|/FOLDER/|tcp:PORT|unix:NAME|process:NAME ...]", "list or change what agents may leave",
        f"{_TASKS}:AllowArgs", "qualify.allow:allow_things", ("task", "things")),
    "tasks list": Command(
        "DIR ...", "list tasks with family, digest and fault",
        f"{_TASKS}:ListArgs", "qualify.commands:list_tasks", ("dirs",)),
    "tasks get": Command(
        "NAME@VERSION to=FOLDER", "fetch a dataset of Harbor's registry, with digests",
        f"{_TASKS}:GetArgs", "qualify.commands:get", ("dirs",)),
    "tasks split": Command(
        "DIR ...", "print the training and held-out tasks that a run would have",
        f"{_TASKS}:SplitArgs", "qualify.commands:split", ("dirs",)),
    "tasks close": Command(
        "A B", "list tasks of A that share words with tasks of B or are related to them; exit 1 if there are any",
        f"{_TASKS}:CloseArgs", "qualify.commands:list_close", ("a", "b")),
    "tasks measure": Command(
        "DIR out=FILE.json field=value ...", "how hard tasks are for a policy: an evaluation with trials=8",
        f"{_EVALUATION}:EvalArgs", "evaluation.measure:measure", read="evaluation.arguments:parse_measure"),
    "report": Command(
        "RUN_DIR ...", "write one HTML page of a run, or of several drawn over each other",
        "report.arguments:ReportArgs", "report.write:report", ("run_dir",)),
    "watch": Command(
        "RUN_DIR ...", "serve the report of runs as they go, to browsers on this machine",
        "report.arguments:WatchArgs", "report.live:watch", ("run_dir",)),
    "replay": Command(
        "RUN_DIR ...", "rebuild a run's datums from its files; exit 1 if they are not what its ledger says",
        "replay.arguments:ReplayArgs", "replay.replay:replayed", ("run_dir",)),
}  # fmt: skip
_DOCS = "docs"
HEADS = {  # of every command: how to call it, what it does
    **{name: (command.usage, command.about) for name, command in TABLE.items()},
    **{name: (script.usage, script.about) for name, script in SCRIPTS.items()},
    _DOCS: ("PAGE", "print a page of the documentation"),
}
_PROGRAMS = tuple(dict.fromkeys(name.split()[0] for name in HEADS))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: the command's; 2 for a UserError, printed as plain lines; 130 stopped by a signal, 75 by a limit of
    the run, 80 by a cap on spending (src/harbortrainer/budget/budget.py); 141 when nothing reads its output.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    stop = Stop()
    return run_command(lambda: _command(words, stop), stop)


def _command(words: list[str], stop: Stop) -> Coroutine[Any, Any, int]:
    if script := find_script(words):
        run_script(*script)
    if {"-h", "--help"} & set(words):
        names = " ".join(words[:2]), words[0]
        return _print_help(next((name for name in names if name in HEADS or _verbs(name)), ""))
    if words[:1] == [_DOCS]:
        return _print(page(" ".join(words[1:])))
    name = _find(words)
    command = TABLE[name]
    logging.basicConfig(format="%(levelname)s: %(message)s", level=_LOG_LEVELS.get(words[0], logging.WARNING))
    logging.getLogger("harbortrainer").addFilter(_fit)
    left = words[len(name.split()) :]
    args = load(command.read)(left) if command.read else _read(command, left)
    work = load(command.work)
    return work(args, stop) if command.stops else work(args)


def _fit(record: logging.LogRecord) -> bool:
    """Let a log line name the commands of this installation."""
    said = record.getMessage()
    if (text := fitted(said)) != said:
        record.msg, record.args = text, ()
    return True


def _read(command: Command, words: Sequence[str]) -> Any:
    args = read_arguments(load(command.kind), words, command.words)
    refuse(problems(args))
    return args


def _find(words: Sequence[str]) -> str:
    """The command that the first words name. Raises UserError."""
    program, verb = (*words, "", "")[:2]
    if program not in _PROGRAMS:
        raise UserError(_no_command(program, _PROGRAMS))
    verbs = _verbs(program)
    if verb in verbs:
        return f"{program} {verb}"
    if program in TABLE and (not verbs or not verb or verb.startswith("-") or "=" in verb):
        return program
    raise UserError(_no_command(verb, verbs))


def _no_command(word: str, known: Sequence[str]) -> str:
    return f"{f'{word}: no such command' if word else 'give a command'}; one of {', '.join(known)}; see --help"


def _verbs(program: str) -> list[str]:
    return [name.split()[1] for name in HEADS if name.startswith(f"{program} ")]


def _print_help(name: str) -> Coroutine[Any, Any, int]:
    """Print the usage of a command and of its verbs, then its fields."""
    shown = [one for one in HEADS if not name or one == name or one.startswith(f"{name} ")]
    heads = [f"harbortrainer {one} {HEADS[one][0]}" for one in shown]
    width = max(map(len, heads))
    lines = [f"{head:{width}}   {HEADS[one][1]}" for head, one in zip(heads, shown, strict=True)]
    if name in TABLE:
        lines.append(fitted(fields_help(load(TABLE[name].kind))))
    return _print("\n".join(lines))


async def _print(text: str) -> int:
    print(text)
    return 0


def load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(f"harbortrainer.{module}"), name)


def run_command(prepare: Callable[[], Coroutine[Any, Any, int]], stop: Stop | None = None) -> int:
    """Read the environment files and run the coroutine of `prepare`. Ctrl-C, SIGTERM and SIGHUP request `stop`.

    A second signal exits immediately. Returns the exit status.
    """
    stop = stop or Stop()
    _open_streams()
    try:
        with disk_errors(), _flushed_output():
            load_environment()
            return asyncio.run(until_stopped(prepare(), stop))
    except UserError as error:
        for line in str(error).splitlines():
            _complain(f"error: {harmless(line)}")
        return 2
    except BrokenPipeError:  # as in `--help | head`
        return PIPE_STATUS
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich exits with 1, which has another meaning here
            return PIPE_STATUS
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        _complain("stopped")
        return stop.status or SIGNAL_STATUS


def _open_streams() -> None:
    """Give a place to streams that the caller has closed: a file of the run would get their numbers."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the exit
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a letter that the terminal has not must not end a run


@contextlib.contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush the output after the block: at exit a closed pipe or a full disk could not be caught."""
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            drop_output(sys.stdout)
            raise


def _complain(line: str) -> None:
    try:
        print(line, file=sys.stderr)
    except OSError:  # the terminal is gone
        drop_output(sys.stderr)


async def until_stopped[T](work: Coroutine[Any, Any, T], stop: Stop) -> T:
    """Run the work; a stop cancels it once, unless the work handles `stop` itself."""
    task = asyncio.ensure_future(work)
    stop.cancels(task)
    with signals_to(stop):
        return await task


def load_environment(folder: Path = Path()) -> None:
    """Read `.env.skyrl-tx`, then `.env`, where they exist; a variable that is set already keeps its value.

    A proxy is never asked for this machine's own servers.
    """
    from dotenv import load_dotenv

    for name in (".env.skyrl-tx", ".env"):
        load_dotenv(folder / name, override=False)
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if getproxies() and without != "*" and LOOPBACK not in without:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{without},{LOOPBACK}".lstrip(",")


if __name__ == "__main__":
    sys.exit(main())
