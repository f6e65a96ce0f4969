"""Where tables of tasks go: to a terminal as wide as it is, elsewhere in lines that nothing cuts."""

from rich.console import Console

_UNCUT = 100_000  # columns


def table_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNCUT)
