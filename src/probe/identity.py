"""Which server is it: what healthz says of it, wherever it runs, else its URL and the API that it describes there."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_SEC = 10.0


@dataclass(frozen=True, slots=True)
class Identity:
    """`server`: what a server of ours says of itself in healthz, {} for others."""

    fingerprint: str
    server: dict[str, Any]

    @property
    def name(self) -> str:
        if not self.server:
            return "unnamed"
        return f"{self.server.get('name')} on skyrl {self.server.get('skyrl')}"


async def identify(url: str) -> Identity:
    """Raises httpx.HTTPError when nobody answers."""
    async with httpx.AsyncClient(timeout=TIMEOUT_SEC) as http:
        server = _server(await http.get(f"{url}/api/v1/healthz"))
        if server:
            lasting = {name: value for name, value in server.items() if name != "instance"}
            return Identity(_hash(json.dumps(lasting, sort_keys=True)), server)
        described = await http.get(f"{url}/openapi.json")
        api = described.text if described.status_code == httpx.codes.OK else ""
        return Identity(_hash(f"{url}\n{api}"), {})


def _server(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json().get("server")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
