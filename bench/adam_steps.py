"""Optimizer steps behind a saved state, by its own Adam's counter. To be run by the server's interpreter:

server/.venv/bin/python bench/adam_steps.py STATE/checkpoints/MODEL/NAME.tar.gz
"""

import sys
from pathlib import Path

import orbax.checkpoint  # pyright: ignore[reportMissingImports]

tree = orbax.checkpoint.PyTreeCheckpointer().restore(Path(sys.argv[1]).absolute() / "checkpoint_0")
print(int(tree["optimizer_state"]["opt_state"]["inner_state"]["0"]["count"]["value"]))
