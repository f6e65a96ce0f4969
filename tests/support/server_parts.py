"""Requests to a server without the SDK, which would go on asking a failing one for minutes."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tinker
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto

PROTO = {"Content-Type": "application/x-protobuf"}
HEARTBEAT_SEC = 2.0


@dataclass
class Raw:
    """One session of one server, without the SDK. `beats`: it is kept open, as the SDK does, while this object lives.

    Sessions that no test ends cost the server more than all other requests: each beats until the server stops.
    """

    url: str
    model: Path | str
    beats: bool = True
    session_id: str = field(init=False)
    models: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        closed = httpx.Limits(max_keepalive_connections=0)  # a server closes the connection on which it failed
        # without certificates, which each client would read again: 35 ms
        self.http = httpx.Client(base_url=f"{self.url}/api/v1", timeout=600, limits=closed, verify=False)
        self.session_id = self.post("create_session", tags=[], sdk_version="0.38.0").json()["session_id"]
        if self.beats:
            threading.Thread(target=_beat, args=(weakref.ref(self),), name="heartbeats", daemon=True).start()

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.http.post(f"/{path}", json=body)

    def settle(self, answer: httpx.Response) -> httpx.Response:
        """What became of a request that was accepted."""
        return self.post("retrieve_future", request_id=answer.raise_for_status().json()["request_id"])

    def create(self, base_model: str | None = None) -> httpx.Response:
        number = len(self.models)
        self.models.append(f"{self.session_id}:train:{number}")
        lora = {"rank": 8, "seed": 1}
        model = base_model or str(self.model)
        return self.post(
            "create_model", session_id=self.session_id, model_seq_id=number, base_model=model, lora_config=lora
        )

    def adapter(self) -> str:
        self.settle(self.create()).raise_for_status()
        return self.models[-1]

    def forward(self, model_id: str, datum: tinker.Datum, loss_fn: Any = "cross_entropy") -> httpx.Response:
        return self.train(model_id, [datum], loss_fn, forward_only=True)

    def train(self, model_id: str, data: list[tinker.Datum], loss_fn: Any, *, forward_only: bool) -> httpx.Response:
        given = types.ForwardBackwardInput(data=data, loss_fn=loss_fn)
        request = types.ForwardBackwardRequest(forward_backward_input=given, model_id=model_id, seq_id=None)
        message = forward_backward_request_to_proto(request)
        message.forward_only = forward_only
        return self.http.post("/forward_backward", content=message.SerializeToString(), headers=PROTO)

    def sample(self, tokens: list[int], **params: Any) -> httpx.Response:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": tokens}]}
        return self.post("asample", base_model=str(self.model), prompt=prompt, sampling_params=params)

    def unload(self) -> None:
        for model_id in self.models:
            self.post("unload_model", model_id=model_id)


def _beat(held: weakref.ref[Raw]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        while (raw := held()) and raw.post("session_heartbeat", session_id=raw.session_id).is_success:
            del raw  # it may end
            time.sleep(HEARTBEAT_SEC)


def refused(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code in (400, 404, 422), answer.text
    for word in words:
        assert word in answer.text


def awaited[T](ask: Callable[[], T | None], limit_sec: float = 600) -> T:
    end = time.monotonic() + limit_sec
    while (found := ask()) is None:
        assert time.monotonic() < end, f"not within {limit_sec:g} s"
        time.sleep(0.2)
    return found
