"""The trainer's quick import of transformers: one file of its package, which has no other imports."""

import runpy
from pathlib import Path

FILE = Path(__file__).parents[1] / "src" / "harbortrainer" / "policy" / "quick_import.py"
import_transformers = runpy.run_path(str(FILE))["import_transformers"]
