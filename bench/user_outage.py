"""The endpoint that plays the users goes away in the middle of a batch: what becomes of its trials.

    python -m bench.user_outage [--seconds 60] [--write]

A real server with the policy models/desk, conversations of examples/desk, one step of 48 trials. The endpoint refuses
connections once half of the trials have asked it.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench import report
from tests.conftest import live_server
from tests.support.desk_runs import MODEL, SERVER, run_with_outage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the endpoint is away")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-outage-") as folder,
        live_server(MODEL, Path(folder) / "server", **SERVER) as url,
    ):
        found = asyncio.run(run_with_outage(url, Path(folder), arguments.seconds))
    rows = [
        ["seconds away", f"{found.seconds:.0f}"],
        ["trials of the batch; graded", f"{found.trials}; {found.graded}"],
        ["rewards of 0 by the outage", str(found.zeros)],
        ["updates", str(found.trained)],
    ]
    wrong = ["ungraded trials"] * (found.graded < found.trials) + ["rewards of 0"] * bool(found.zeros)
    wrong += ["no update"] * (found.trained != 1)
    document = report.RESULTS if arguments.write else None
    report.publish("bench.user_outage", "user-outage", ("", ""), rows, document, wrong=wrong)


if __name__ == "__main__":
    main()
