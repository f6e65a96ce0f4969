"""A process that logs as a run does: python -m tests.wandb_process RUN ROWS SECONDS [kill].

RUN: its folder; ROWS: JSON lines, of which those are logged that the run lacks; SECONDS: wandb's limits; kill: by
SIGKILL, after the last row.
"""

import os
import signal
import sys
from pathlib import Path

from src.run.directory import RunDirectory
from src.run.jsonl import read_lines
from src.run.metrics_log import MetricsLog
from src.sinks.aside import Limits
from src.sinks.wandb_log import start_wandb


def main(folder: str, rows: str, seconds: str, *how: str) -> None:
    run = RunDirectory(Path(folder))

    def say(text: str) -> None:
        print(text, flush=True)

    limits = Limits(start=float(seconds), finish=float(seconds))
    log = MetricsLog(run, start_wandb(run, "p", None, {"seed": 1, "effective": {"loss": "ppo"}}, say, limits))
    for row in read_lines(Path(rows)):
        if row["global_step"] > log.last_step:
            log.log(row.pop("global_step"), row)
    if how:
        os.kill(os.getpid(), signal.SIGKILL)
    log.close(0)
    say("over")


if __name__ == "__main__":
    main(*sys.argv[1:])
