"""The key of the server: requests without it are refused. Not a repair: it applies whatever `--repairs` says."""

import hmac
import ipaddress
import json
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

VARIABLE = "SKYRL_TX_API_KEY"
HEADER = b"x-api-key"  # as the tinker SDK sends it
OPEN = ("/api/v1/healthz",)  # asked by programs that wait for the server; it shows no secret
SIGNED = "/api/v1/external_weights/"  # its URLs hold a signature (repairs/api_external.py)
PREFIX, LEAST = "tml-", 20  # the SDK requires the prefix; characters of a key

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def take_key(host: str) -> str:
    """Takes the key out of the environment, which the engine inherits; "" = the server needs none.

    Exits with one line when the key has the wrong form, or is missing and `host` is not this machine alone.
    """
    key = os.environ.pop(VARIABLE, "")
    if key and (not key.startswith(PREFIX) or len(key) < LEAST or not key.isascii()):
        sys.exit(f"{VARIABLE}: needs {LEAST} characters or more and starts with {PREFIX}, as the tinker SDK requires")
    if not key and not is_loopback(host):
        sys.exit(
            f"--host {host}: other machines and containers can reach this address, so set {VARIABLE} to a key "
            "(scripts/start_skyrl_tx.sh makes one), or listen on 127.0.0.1"
        )
    return key


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def guarded(app: App, key: str) -> App:
    """The app, which answers 401 to every request without the key, except those to OPEN and SIGNED.

    Without a key, the app.
    """
    if not key:
        return app
    expected = key.encode()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope["path"]) or _has(scope, expected):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)

    return check


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(SIGNED)


def _has(scope: Scope, key: bytes) -> bool:
    given = [value for name, value in scope["headers"] if name.lower() == HEADER]
    return len(given) == 1 and hmac.compare_digest(given[0], key)  # takes as long for any wrong key


async def _refuse(send: Send) -> None:
    body = json.dumps({"detail": f"this server requires a key in the header X-API-Key: set {VARIABLE}"}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
