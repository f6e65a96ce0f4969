"""Commands that are files of the repository: scripts to run, pages to print. A wheel has them in its environment."""

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harbortrainer.commands import IN_CHECKOUT, SCRIPTS, SPELLINGS, fitted
from harbortrainer.errors import UserError

ROOT_FILE = "run_quickstart.sh"  # in the folder that has all of them
CALLER = "HARBORTRAINER_CALLER"  # variable: the folder of the command, where there is no checkout; results go there
SPOKEN = "HARBORTRAINER_SPOKEN"  # variable: a program of sed that says a script's words as commands


def root() -> Path:
    """Return the folder of scripts, server, models, data sets and pages. Raises UserError."""
    checkout = Path(__file__).parents[3]
    if (checkout / ROOT_FILE).is_file():
        return checkout
    for file in importlib.metadata.files("harbortrainer") or ():
        if file.name == ROOT_FILE:
            return Path(file.locate()).resolve().parent
    raise UserError("harbortrainer was installed without its scripts; install the wheel again, or use a checkout")


def find_script(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the name in SCRIPTS with which a command begins, and its other words; None = it is no script."""
    for count in (2, 1):
        if (name := " ".join(words[:count])) in SCRIPTS:
            return name, list(words[count:])
    return None


def run_script(name: str, words: Sequence[str]) -> None:
    """Become the script. Raises UserError when its folder cannot be used."""
    folder, script = root(), SCRIPTS[name].path
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.getenv("PYTHONPATH"))))}
    if not (folder / "pyproject.toml").is_file():  # from a wheel
        _link_environment(folder)
        environment |= {CALLER: str(Path.cwd()), SPOKEN: ";".join(f"s#{a}#{b}#g" for a, b in SPELLINGS.items())}
    if script.endswith(".py"):
        module = script.removesuffix(".py").replace("/", ".")
        os.execve(sys.executable, [sys.executable, "-m", module, *words], environment)
    if Path.cwd() != folder:
        words = [_absolute(word) for word in words]
    os.execve(folder / script, [str(folder / script), *words], environment)


def _link_environment(folder: Path) -> None:
    """Give the scripts the environment of this Python as `.venv`."""
    link = folder / ".venv"
    with contextlib.suppress(FileExistsError):
        try:
            link.symlink_to(sys.prefix)
        except PermissionError:
            raise UserError(
                f"{folder}: cannot be written; install harbortrainer into an environment of your own"
            ) from None


def _absolute(word: str) -> str:
    """`NAME=VALUE` whose value is a file here, so that it is found from the script's folder too."""
    name, equals, value = word.partition("=")
    return f"{name}={Path(value).absolute()}" if equals and value and Path(value).exists() else word


def page(name: str) -> str:
    """Return the text of a page of the documentation; without a checkout, with the place of the files that it names.

    Raises UserError.
    """
    pages = {file.stem: file for file in sorted((root() / "docs").glob("*.md"))}
    if name not in pages:
        raise UserError(f"{name or 'give a page'}: one of {', '.join(pages)}")
    text = pages[name].read_text()
    if IN_CHECKOUT:
        return text
    title, _, rest = text.partition("\n")
    note = f"Without a checkout, copy the files that this page names: cp -r {root()}/{{datasets,examples,models}} ."
    return f"{title}\n\n{note}\n{fitted(rest, checkout=False)}"
