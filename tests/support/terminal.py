"""A terminal as far as a run's output needs one: what stays on it after text, line feeds and the codes we use."""

import io
import re

from rich.cells import cell_len
from rich.console import Console

from harbortrainer.learning.trajectory import Outcome, Trajectory

ROW = {
    "reward/mean": 0.25, "time/step": 100.0, "group/count": 2.0, "group/constant_fraction": 0.5,
    "group/trials_lost": 0.0, "rollout/trials": 4.0, "turn/per_trial": 2.0, "time/sample": 80.0, "time/update": 10.0,
}  # fmt: skip

_PIECE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n\x08])|([^\x1b\r\n\x08]+)|([\s\S])")


class Terminal:
    """`rows`: all lines so far, those that scrolled off included. An escape code that we do not use is an error."""

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        self.columns, self.height = columns, height
        self.cells: list[list[str]] = [[]]
        self.cursor_shown = True
        self._row = self._column = 0

    @property
    def rows(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.rows).rstrip()

    def feed(self, text: str) -> None:
        for match in _PIECE.finditer(text):
            number, code, control, plain, other = match.groups()
            if plain is not None:
                for character in plain:
                    self._put(character)
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._down()
            elif code is not None:
                self._obey(number, code)
            elif control is None:
                raise AssertionError(f"an unknown escape code: {other!r} before {text[match.end() :][:20]!r}")

    def _obey(self, number: str, code: str) -> None:
        match code, number:
            case "A", _:
                self._row = max(self._row - int(number or 1), len(self.cells) - self.height, 0)
            case "K", "" | "0":
                del self.cells[self._row][self._column :]
            case "K", "2":
                self.cells[self._row].clear()
            case "m", _:
                pass
            case "h" | "l", "?25":
                self.cursor_shown = code == "h"
            case _:
                raise AssertionError(f"an unknown escape code: ESC[{number}{code}")

    def _put(self, character: str) -> None:
        width = cell_len(character)
        if self._column + width > self.columns:
            self._column = 0
            self._down()
        row = self.cells[self._row]
        row.extend(" " * (self._column + width - len(row)))
        row[self._column : self._column + width] = [character, *[""] * (width - 1)]
        self._column += width

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.cells):
            self.cells.append([])


class Pane(io.StringIO):
    """The file of a console; it writes to a terminal as the kernel does, which adds the carriage returns."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal
        self.written = 0

    def write(self, text: str, /) -> int:
        self.written += 1
        self.terminal.feed(text.replace("\n", "\r\n"))
        return len(text)

    def isatty(self) -> bool:
        return True


def console_of(pane: Pane) -> Console:
    return Console(file=pane, force_terminal=True, highlight=False, soft_wrap=True, emoji=False, width=80, height=24)


def trajectory(name: str, reward: float | None, outcome: Outcome = Outcome.COMPLETED) -> Trajectory:
    return Trajectory("task", name, (), reward, outcome, "no disk" if reward is None else "")
