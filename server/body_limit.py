"""The size of a request's body: one that would fill the memory of the API, which all users share, is refused.

Not a repair: it applies whatever `--repairs` says.
"""

import json
from collections.abc import MutableMapping
from typing import Any

from api_key import App, Receive, Scope, Send

LARGE = ("/api/v1/forward_backward", "/api/v1/adapters")
MOST_TRAINING, MOST = 1 << 30, 64 << 20  # bytes; skyrl unpacks a compressed body of MOST_TRAINING at most


class TooLarge(ValueError):
    """A body without a length turned out to be too large."""


def limited(app: App) -> App:
    """The app, which answers 413 to a request whose body is larger, and reads no more of one that grows so large."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        most = MOST_TRAINING if scope["path"] in LARGE else MOST
        length = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
        if int(length) > most:
            await _refuse(send, int(length), most)
        else:
            await app(scope, counting(receive, most), send)

    return check


def counting(receive: Receive, most: int) -> Receive:
    seen = 0

    async def receive_some() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise TooLarge(f"the request is larger than {most} bytes")
        return message

    return receive_some


async def _refuse(send: Send, length: int, most: int) -> None:
    body = json.dumps({"detail": f"a request of {length} bytes: this server takes at most {most}; send it in parts"})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body.encode()})
