"""`python -m src.train field=value ...`: configuration -> checked -> wired -> run."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from src.command_line import load_environment, parse
from src.errors import UserError
from src.validation import validate


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 a mistake or fault that the user can act on (told in plain lines), 130 stopped."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        load_environment()
        config = parse(sys.argv[1:] if argv is None else argv)
        validate(config)
        from src.session import train  # heavy imports: only after the arguments are known to be right

        return asyncio.run(_until_stopped(train(config)))
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130


async def _until_stopped(work) -> int:
    """SIGTERM stops like Ctrl-C: one cancellation, clean-up awaited."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
