"""A process that logs as a run does: python -m tests.support.wandb_process RUN ROWS SECONDS [kill].

RUN: its folder; ROWS: JSON lines, of which the process logs those that the run lacks; SECONDS: wandb's limits; kill:
the process ends by SIGKILL as soon as wandb's offline file has a byte.
"""

import os
import signal
import sys
import time
from pathlib import Path

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.watch.wandb_log import SinkLimits, start_wandb


def main(folder: str, rows: str, seconds: str, *how: str) -> None:
    run = RunDirectory(Path(folder))

    def say(text: str) -> None:
        print(text, flush=True)

    limits = SinkLimits(float(seconds), float(seconds))
    log = MetricsLog(run, start_wandb(run, "p", None, {"seed": 1, "effective": {"loss": "ppo"}}, say, limits))
    for row in read_lines(Path(rows)):
        if row["global_step"] > log.last_step:
            log.log(row.pop("global_step"), row)
    if how:
        while not any(file.stat().st_size for file in run.path.glob("wandb/latest-run/*.wandb")):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    log.close(0)
    say("over")


if __name__ == "__main__":
    main(*sys.argv[1:])
