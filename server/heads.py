"""Heads of requests with limits: one that does not end blocked the API, which all users share, before any key is read.

Not a repair: it applies whatever `--repairs` says. uvicorn's other parser (httptools) has no limit.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class HeadsInTime(H11Protocol):
    """A connection that ends unless it sends a whole head in time."""

    head_sec = 60.0  # for the first head of a connection; the size of each is limited by uvicorn (64 KiB)

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._late = self.loop.call_later(self.head_sec, self._end_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def _end_if_silent(self) -> None:
        if self.cycle is None:  # no request has begun
            self.transport.abort()
