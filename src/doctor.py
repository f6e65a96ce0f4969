"""`python -m src.doctor [COMMAND] field=value ...`: looks at what a run depends on, and changes nothing unasked."""

import logging
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from src.command_line import read_arguments, run_command

HELP = {
    "": "python -m src.doctor field=value ...   what a Tinker API does, measured on throw-away weights",
    "parity": "python -m src.doctor parity A=URL B=URL ...   whether two train and sample alike; exit 1 if not",
    "docker": "python -m src.doctor docker field=value ...   whether Docker can carry a run; exit 2 if not",
    "clean": "python -m src.doctor clean field=value ...   what runs have left on Docker; exit 1 if anything",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 as the command's help says, 2 a mistake or fault, told in plain lines, 130 stopped."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.CRITICAL)
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _command(arguments))


def _command(arguments: list[str]) -> Coroutine[Any, Any, int]:
    name = arguments[0] if arguments and arguments[0] in HELP else ""
    if name in ("docker", "clean"):
        from src.doctor_docker import COMMANDS
    else:  # the SDK takes seconds to import
        from src.doctor_servers import COMMANDS
    kind, run = COMMANDS[name]
    head = HELP[name] if name else "\n".join(HELP.values())
    return run(read_arguments(kind, arguments[1:] if name else arguments, head))


if __name__ == "__main__":
    sys.exit(main())
