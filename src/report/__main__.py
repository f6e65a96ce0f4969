"""`python -m src.report`: `harbortrainer report`, one static page of one run, or of several."""

import asyncio
import sys

from src.cli.main import main
from src.report.arguments import ReportArgs, places


async def report(args: ReportArgs) -> int:
    """Exit status 0. Raises UserError for a folder that is no run."""
    from src.report.write import write_report

    runs, out = places(args)
    print(await asyncio.to_thread(write_report, *runs, out=out, panels=args.panels))
    return 0


if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
