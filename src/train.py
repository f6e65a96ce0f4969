"""`python -m src.train field=value ...`: configuration -> checked -> wired -> run."""

import logging
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from src.command_line import parse, run_command
from src.stop import Stop
from src.validation import validate

DRY_RUN = "--dry-run"  # plan=true


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 a mistake or fault that the user can act on (told in plain lines), 130 stopped by a
    signal, 75 by max_wall_seconds or max_trials, 80 to 82 by a cap on spending (src/budget/budget.py); stopped, it
    goes on with resume=RUN_DIR.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    stop = Stop()
    return run_command(lambda: _training(sys.argv[1:] if argv is None else argv, stop), stop)


def _training(arguments: Sequence[str], stop: Stop) -> Coroutine[Any, Any, int]:
    config = parse(["plan=true" if argument == DRY_RUN else argument for argument in arguments])
    validate(config)
    if config.plan:
        from src.planning.show import dry_run

        return dry_run(config)
    from src.session import run_training  # heavy imports: only after the arguments are known to be right

    return run_training(config, stop)


if __name__ == "__main__":
    sys.exit(main())
