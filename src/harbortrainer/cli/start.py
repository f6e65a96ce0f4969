"""Where a command begins: Ctrl-C ends it without a traceback from the first import on."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def load_late(package: str) -> None:
    """Import a package at the first use of one of its names, unless it is imported already; one thread may use it."""
    if package not in sys.modules and (spec := importlib.util.find_spec(package)) is not None:
        sys.modules[package] = module = importlib.util.module_from_spec(spec)
        module.__class__ = _Late


class _Late(ModuleType):  # importlib's LazyLoader loads at the second `import` already
    def __getattr__(self, name: str) -> Any:
        object.__setattr__(self, "__class__", ModuleType)
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `harbortrainer.cli.main`; in a new process where the locale is not UTF-8, as tasks are. Exit status."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    try:
        from harbortrainer.cli.main import main as run

        return run(argv)
    except KeyboardInterrupt:  # while it is imported
        print("stopped", file=sys.stderr)
        return 130
