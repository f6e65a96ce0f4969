"""The live view: a thread that draws the panel while anything changes, at most four times a second."""

import contextlib
import threading
import time
from collections.abc import Callable

from rich.console import Console

from src.display.board import Board
from src.display.panel import Words, panel
from src.display.region import Region

REFRESH_SEC = 0.25
STILL_SEC = 1.0  # between two draws of a board on which nothing changed: its clocks go on
END_LIMIT_SEC = 2.0  # for the thread to end; a terminal that takes nothing (Ctrl-S) is not waited for


class LiveView:
    """`words` is asked at every draw; `lock` is held by whoever prints to the console."""

    def __init__(self, console: Console, board: Board, words: Callable[[int], Words], lock: threading.RLock) -> None:
        self._board = board
        self._words = words
        self._lock = lock
        self._region = Region(console)
        self._unicode = console.encoding.startswith("utf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="live view", daemon=True)

    def start(self) -> None:
        with self._lock:
            self._region.open()
            self.draw()
        self._thread.start()

    def stop(self) -> None:
        """The panel is gone, the cursor is back."""
        self._over.set()
        self._thread.join(END_LIMIT_SEC)
        with self._lock, contextlib.suppress(OSError):  # the terminal may be gone
            self._region.close()

    def _keep_drawing(self) -> None:
        drawn, at = -1, 0.0
        while not self._over.wait(REFRESH_SEC):
            version, now = self._board.version, time.monotonic()
            if version == drawn and now - at < STILL_SEC:
                continue
            drawn, at = version, now
            try:
                with self._lock:
                    if not self._over.is_set():
                        self.draw()
            except OSError:
                return

    def draw(self) -> None:
        """The panel of this moment. Raises OSError when the terminal is gone."""
        now = self._board.look()
        running = sum(now.trials.states.values()) if now.trials else 0
        columns, rows = self._region.size()
        self._region.draw(panel(now, self._words(running), columns, rows, unicode=self._unicode))
