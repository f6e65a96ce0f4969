"""Where a command begins: Ctrl-C ends it without a traceback from the first import on."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `harbortrainer.cli.main`. Exit status."""
    try:
        from harbortrainer.cli.main import main as run

        return run(argv)
    except KeyboardInterrupt:  # while it is imported
        print("stopped", file=sys.stderr)
        return 130
