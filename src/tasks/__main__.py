"""`python -m src.tasks COMMAND DIR... field=value ...`: looks at tasks before anything is trained on them."""

import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from src.command_line import read_arguments, run_command
from src.errors import UserError

HELP = {
    "check": "python -m src.tasks check DIR ...   whether tasks can be trusted, by trials; exit 1 if one cannot",
    "list": "python -m src.tasks list DIR ...    tasks with family, digest and environment",
    "show": "python -m src.tasks show TASK_DIR   one task: settings, instruction, what identifies it",
    "get": "python -m src.tasks get NAME@VERSION to=FOLDER   a dataset of Harbor's registry, with digests",
    "split": "python -m src.tasks split DIR ...   training and held-out tasks as a run would have them",
}

Commands = dict[str, tuple[type[Any], Callable[[Any], Coroutine[Any, Any, int]]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 as the command's help says, 2 a mistake or fault, told in plain lines, 130 stopped."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.ERROR)
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _command(arguments))


def _command(arguments: list[str]) -> Coroutine[Any, Any, int]:
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print("\n".join(HELP.values()))
        raise SystemExit(0)
    if name not in HELP:
        raise UserError(f"{name or 'no command'}: unknown; one of {', '.join(HELP)}")
    kind, run = _commands(name)[name]
    return run(read_arguments(kind, as_fields(arguments[1:]), HELP[name]))


def _commands(name: str) -> Commands:
    """Harbor takes a second to import: only for what needs it."""
    if name == "check":
        from src.tasks.check import CheckArgs, check

        return {"check": (CheckArgs, check)}
    if name == "get":
        from src.tasks.get import GetArgs, get

        return {"get": (GetArgs, get)}
    from src.tasks.look import COMMANDS

    return COMMANDS


def as_fields(arguments: Sequence[str]) -> list[str]:
    """`DIR DIR --json field=value` as `dirs=DIR,DIR json=- field=value`; --quarantine is quarantine=true."""
    folders = [argument for argument in arguments if "=" not in argument and not argument.startswith("-")]
    fields = [f"dirs={','.join(folders)}"] if folders else []
    for argument in arguments:
        if argument == "--json":
            fields.append("json=-")
        elif argument == "--quarantine":
            fields.append("quarantine=true")
        elif argument not in folders:
            fields.append(argument)
    return fields


if __name__ == "__main__":
    sys.exit(main())
