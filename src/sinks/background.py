"""Feeds rows to a sink in a background thread. A failure is reported once and never stops the run."""

import threading
from collections.abc import Callable
from concurrent.futures import wait
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from src.daemon_thread import daemon_future
from src.run.metrics_log import RowSink


class SinkLimits(NamedTuple):
    """Seconds that a run waits for a sink."""

    start: float = 20.0
    finish: float = 90.0


class Sink(RowSink, Protocol):
    """`about`: one line that says where it writes."""

    @property
    def about(self) -> str: ...


class BackgroundSink:
    """`log` never blocks and never raises; after the sink's first error this process sends nothing more."""

    def __init__(self, name: str, opening: Callable[[], Sink], say: Callable[[str], None], limits: SinkLimits) -> None:
        self._name, self._say, self._limits = name, say, limits
        self._calls: SimpleQueue[Callable[[Sink], None] | None] = SimpleQueue()
        self._about = ""
        self._off = False
        opened = threading.Event()
        self._work = daemon_future(self._serve, opening, opened)
        self._work.add_done_callback(lambda _: opened.set())
        if not opened.wait(limits.start):
            say(f"{name}: no response after {limits.start:g} s; continuing without it")
        self._report()

    def log(self, row: dict[str, Any]) -> None:
        """Hand over one row; a sink that opens late gets the rows that wait."""
        if not self._off:
            self._calls.put(lambda sink: sink.log(row))
        self._report()

    def finish(self, exit_code: int | None = None) -> None:
        """Close the sink. Waits `limits.finish` at most."""
        if self._off:
            return
        self._calls.put(lambda sink: sink.finish(exit_code))
        self._calls.put(None)
        if not wait([self._work], self._limits.finish).done:
            self._off = True
            self._say(f"{self._name}: not finished after {self._limits.finish:g} s; metrics.jsonl has every row")
        self._report()

    def _serve(self, opening: Callable[[], Sink], opened: threading.Event) -> None:
        sink = opening()
        self._about = sink.about
        opened.set()
        for call in iter(self._calls.get, None):
            call(sink)

    def _report(self) -> None:
        """Say in the run's own thread what the background thread met."""
        if self._about and not self._off:
            self._say(f"{self._name}: {self._about}")
            self._about = ""
        if not self._off and self._work.done() and (error := self._work.exception()) is not None:
            self._off = True
            why = str(error).strip().partition("\n")[0] or "no reason given"
            self._say(
                f"{self._name}: off ({type(error).__name__}: {why}); metrics.jsonl has every row, and a resumed run "
                "sends the missing ones"
            )
