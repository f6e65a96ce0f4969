"""Arguments of the command `export`."""

import chz

from harbortrainer.config import ServerSettings
from harbortrainer.setting import field


@chz.chz
class ExportArgs(ServerSettings):
    checkpoint: str = field(doc="RUN_DIR (its last), RUN_DIR@STEP, or the tinker:// path of a training state")
    to: str = field(doc="folder to write, new or empty")
    merged: bool = field(False, "true = the whole model with the adapter merged into it; false = the adapter")
    python: str | None = field(
        None, "with merged: a Python whose environment has tinker-cookbook and torch; None = this one"
    )
