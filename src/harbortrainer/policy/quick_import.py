"""Transformers, imported without two searches that its import makes: half a second of CPU of each start.

The self-hosted server reads this file, too, in an environment without this package.
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any


class SameNames(dict[str, list[str]]):
    """The distributions of each package: one that has its name. Transformers asks a package that has another."""

    def __missing__(self, package: str) -> list[str]:
        return [package]


def import_transformers() -> None:
    """Import transformers without the list of all installed packages, and read its 1,500 modules once, not twice."""
    if "transformers" in sys.modules:
        return
    listed: Any = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = SameNames
    try:
        import transformers
    finally:
        importlib.metadata.packages_distributions = listed
    from transformers.utils import import_utils

    read, models = import_utils.create_import_structure_from_path, Path(transformers.__file__).parent / "models"

    def read_once(path: Any) -> Any:
        return read(models if str(path) == str(models / "__init__.py") else path)  # `models` is cached

    import_utils.create_import_structure_from_path = read_once
