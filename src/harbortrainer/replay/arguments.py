"""Arguments of the command `replay`."""

import chz

from harbortrainer.cli.output import JSON
from harbortrainer.setting import field


@chz.chz
class ReplayArgs:
    run_dir: str = field(doc="folder of the run")
    steps: tuple[int, ...] = field((), "global_step of each step to replay, a,b,c; empty = all")
    json: str | None = field(None, JSON)
