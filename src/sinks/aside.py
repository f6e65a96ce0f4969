"""A follower of the rows that works in a thread of its own: what happens to it, the run hears of once, and goes on."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from src.daemon_thread import daemon_future

START_SEC = 20.0  # that the run waits for it at its start
SILENCE_SEC = 300.0  # with a row under way, after which the run says so
FINISH_SEC = 90.0  # that the run waits for it at its end


class Sink(Protocol):
    """Gets every row, in order, and knows which it has had. `about`: where it writes, in one line."""

    @property
    def about(self) -> str: ...
    def log(self, row: dict[str, Any]) -> None: ...
    def finish(self, exit_code: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a run waits for a sink."""

    start: float = START_SEC
    silence: float = SILENCE_SEC
    finish: float = FINISH_SEC


class Aside:
    """`log` never blocks and never raises; after the first error of the sink nothing more is sent in this process."""

    def __init__(self, name: str, opening: Callable[[], Sink], say: Callable[[str], None], limits: Limits) -> None:
        self._name, self._say, self._limits = name, say, limits
        self._rows: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._about = ""
        self._exit_code: int | None = None
        self._busy_since: float | None = time.monotonic()
        self._off = self._slow = False
        opened = threading.Event()
        self._work = daemon_future(self._serve, opening, opened)
        self._work.add_done_callback(lambda _: opened.set())
        if not opened.wait(limits.start):
            say(f"{name}: no answer in {limits.start:g} s; the run does not wait for it")
        self._tell()

    def log(self, row: dict[str, Any]) -> None:
        """Hand over one row."""
        if not self._off:
            self._rows.put(row)
        self._tell()

    def finish(self, exit_code: int | None = None) -> None:
        """End it. Blocks, but not for longer than its limit."""
        if self._off:
            return
        self._exit_code = exit_code
        self._rows.put(None)
        if not wait([self._work], self._limits.finish).done:
            self._off = True
            self._say(f"{self._name}: not done in {self._limits.finish:g} s, left behind; metrics.jsonl has every row")
        self._tell()

    def _serve(self, opening: Callable[[], Sink], opened: threading.Event) -> None:
        sink = opening()
        self._about = sink.about
        opened.set()
        while True:
            self._busy_since = None
            row = self._rows.get()
            self._busy_since = time.monotonic()
            if row is None:
                sink.finish(self._exit_code)
                return
            sink.log(row)

    def _tell(self) -> None:
        """In the run's own thread: what is new, each thing once."""
        if self._about and not self._off:
            self._say(f"{self._name}: {self._about}")
            self._about = ""
        since = self._busy_since
        if not self._slow and since is not None and time.monotonic() - since > self._limits.silence:
            self._slow = True
            self._say(f"{self._name}: no answer for {self._limits.silence:g} s; the run goes on")
        if not self._off and self._work.done() and (error := self._work.exception()) is not None:
            self._off = True
            why = str(error).strip().partition("\n")[0] or "no reason given"
            self._say(
                f"{self._name}: off ({type(error).__name__}: {why}); the run goes on, metrics.jsonl has every row, and "
                "when the run is continued what is missing is sent"
            )
