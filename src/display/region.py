"""Lines at the bottom of a terminal that are drawn in place; whatever else is printed goes above them."""

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.style import Style

from src.display.panel import Line

_CODE = [(ControlType.CLEAR,)]  # marks a segment as a code for the terminal, not text
_ERASE_LINE_END = Segment("\x1b[K", None, _CODE)


class Region(RenderHook):
    """rich's own Live erases all lines before it draws them, which flickers, and loses its place on a resize.

    Not for several threads: the caller lets one of them print or draw at a time.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Line] = []
        self._widths: list[int] = []  # cells of the lines on the screen
        self._styles: dict[str, Style] = {}

    def open(self) -> None:
        self._console.show_cursor(False)
        self._console.push_render_hook(self)

    def draw(self, lines: list[Line]) -> None:
        self._lines = lines
        self._console.print(Control())

    def close(self) -> None:
        """Nothing of the lines stays; the cursor is where the first one was."""
        self.draw([])
        self._console.pop_render_hook()
        self._console.show_cursor(True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by the console for whatever it prints."""
        only_lines = all(isinstance(one, Control) for one in renderables)
        start = self._to_the_top(erase=not only_lines or len(self._lines) < len(self._widths))
        lines = Segments(list(self._drawn()))
        self._widths = [sum(Segment(text).cell_length for text, _ in line) for line in self._lines]
        return [Segments([start]), *renderables, lines]

    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now."""
        try:
            columns, rows = os.get_terminal_size(self._console.file.fileno())
        except OSError:
            columns, rows = 0, 0
        return columns or 80, rows or 24

    def _to_the_top(self, *, erase: bool) -> Segment:
        """A terminal that became narrower shows a line of then on several of now.

        Erased line by line: tmux takes one that is erased from its top to its end for worth keeping, as history.
        """
        columns, _ = self.size()
        rows = sum(max(1, -(-width // columns)) for width in self._widths)
        if erase or rows != len(self._widths):
            return Segment("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (rows - 1), None, _CODE)
        return Segment("\r" + (f"\x1b[{rows - 1}A" if rows > 1 else ""), None, _CODE)

    def _drawn(self) -> Iterable[Segment]:
        for number, line in enumerate(self._lines):
            if number:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, self._style(style))
            yield _ERASE_LINE_END

    def _style(self, name: str) -> Style | None:
        if name not in self._styles:
            self._styles[name] = Style.parse(name)
        return self._styles[name] if name else None
