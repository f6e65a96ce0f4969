"""Arguments of the command `export`."""

import chz

from harbortrainer.config import Endpoint
from harbortrainer.setting import field


@chz.chz
class ExportArgs(Endpoint):
    checkpoint: str = field(doc="RUN_DIR (its last), RUN_DIR@STEP, or the tinker:// path of a training state")
    to: str = field(doc="folder to write, new or empty")
    merged: bool = field(False, "true = the whole model with the adapter merged into it; false = the adapter")
    model_name: str | None = field(
        None, "base model whose tokenizer, and with merged whose weights, are taken; None = as the server names it"
    )
