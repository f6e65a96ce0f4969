"""Modules that a test imports when it uses them: each process of the tests reads all test files."""

import importlib
from typing import Any


class Later:
    """A module of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for its own in whatever a test file has
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
