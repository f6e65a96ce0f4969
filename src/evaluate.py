"""`python -m src.evaluate field=value ...`: what a policy scores on Harbor tasks, how sure that is, and its trials."""

import logging
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from src.command_line import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 a task has no graded trial, 2 a mistake or fault, told in plain lines, 130 stopped."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _command(arguments))


def _command(arguments: list[str]) -> Coroutine[Any, Any, int]:
    if arguments[:1] in (["show"], ["export"]):
        from src.evaluation.look import COMMANDS

        return COMMANDS[arguments[0]](arguments[1:])
    from src.evaluation.arguments import parse

    args = parse(arguments)
    from src.evaluation.session import evaluate  # heavy imports: only after the arguments are known to be right

    return evaluate(args)


if __name__ == "__main__":
    sys.exit(main())
