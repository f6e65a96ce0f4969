"""Ctrl-C and SIGTERM: the first one asks the run to end in order, another one leaves at once."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from src.stop import SIGNAL_STATUS, Stop

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_PRESS_SEC = 1.0  # a terminal and the script around us may both pass on one Ctrl-C
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextlib.contextmanager
def heeding(stop: Stop) -> Iterator[None]:
    """Within the block, in the main thread. A signal that this process was told to ignore stays ignored."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(stop.request, signal.Signals(number).name, SIGNAL_STATUS)
        elif time.monotonic() - first > ONE_PRESS_SEC:
            _leave(stop)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(stop: Stop) -> None:
    """From a signal handler: no buffered output, no clean-up, whatever the loop is doing."""
    cursor = SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{cursor}\nleft at once{stop.then and '; '}{stop.then}\n".encode())
    os._exit(SIGNAL_STATUS)
