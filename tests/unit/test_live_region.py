"""How the live view is drawn: in place, below what is printed, only when there is something new."""

import threading

import pytest

from src.display.board import Board
from src.display.live import LiveView
from src.display.panel import Words
from src.display.region import Region
from tests.terminal import Pane, Terminal, console_of


@pytest.fixture
def terminal() -> Terminal:
    return Terminal(100, 24)


def test_lines_are_drawn_in_place_below_what_is_printed() -> None:
    pane = Pane(Terminal())
    console = console_of(pane)
    region = Region(console)
    region.open()
    assert not pane.terminal.cursor_shown
    region.draw([[("one", "bold"), (" more", "")], [("two", "red")], [("three", "")]])
    assert pane.terminal.text == "one more\ntwo\nthree"
    region.draw([[("1", "")], [("2", "")]])
    assert pane.terminal.text == "1\n2"
    console.print("said")
    assert pane.terminal.text == "said\n1\n2"
    console.print("x" * 100)
    pane.terminal.feed("^C")
    region.draw([[("1", "")]])
    assert pane.terminal.text == f"said\n{'x' * 80}\n{'x' * 20}\n1"
    region.close()
    assert pane.terminal.text == f"said\n{'x' * 80}\n{'x' * 20}" and pane.terminal.cursor_shown
    console.print("after")
    assert pane.terminal.text.endswith("\nafter")


def test_a_narrower_terminal_leaves_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80)
    pane = Pane(terminal)
    console = console_of(pane)
    region = Region(console)
    size = [80, 24]
    monkeypatch.setattr(region, "size", lambda: tuple(size))
    region.open()
    console.print("said")
    region.draw([[("a" * 70, "")], [("b" * 70, "")]])
    # as a terminal that folds what it shows into 40 columns
    terminal.columns = size[0] = 40
    terminal.cells = [list("said"), list("a" * 40), list("a" * 30), list("b" * 40), list("b" * 30)]
    terminal._row, terminal._column = 4, 30
    region.draw([[("a" * 37, "")]])
    assert terminal.text == f"said\n{'a' * 37}"
    size[0] = terminal.columns = 20
    terminal.cells = [list("said"), list("a" * 20), list("a" * 17)]
    terminal._row, terminal._column = 2, 17
    region.draw([[("b", "")]])
    assert terminal.text == "said\nb", "as many lines as before, and fewer rows"


def test_a_low_terminal_that_scrolls_keeps_what_was_said() -> None:
    pane = Pane(Terminal(height=5))
    console = console_of(pane)
    region = Region(console)
    region.open()
    for number in range(20):
        region.draw([[("p", "")], [("q", "")], [("r", "")]])
        console.print(f"line {number}")
    region.close()
    assert pane.terminal.text == "\n".join(f"line {number}" for number in range(20))


def test_nothing_is_drawn_while_nothing_changes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.display.live.STILL_SEC", 1e9)
    monkeypatch.setattr("src.display.live.REFRESH_SEC", 0.001)
    pane, board = Pane(terminal), Board()
    live = LiveView(console_of(pane), board, lambda _: Words("run", "ends it"), threading.RLock())
    ticks = [threading.Event() for _ in range(2)]

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.asked = getattr(self, "asked", 0) + 1
            for number, event in enumerate(ticks, 1):
                if self.asked >= 20 * number:
                    event.set()
            return super().wait(timeout)

    live._over = Over()
    live.start()
    assert ticks[0].wait(60)
    drawn = pane.written
    assert ticks[1].wait(60)
    assert pane.written == drawn
    live.stop()
