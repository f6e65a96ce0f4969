"""The routes of vLLM that the server uses, with registered adapters, deaths, and answers as a test wants them."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

KEY = "a-key"
TOKEN = 7  # of every answer


class FakeVllm:
    """`answer`: changes the body of a sample; `fault`: a status and a message for the next samples, in order."""

    def __init__(self, base_model: str = "base") -> None:
        self.base_model = base_model
        self.registered: dict[str, str] = {}
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.faults: list[tuple[int, str]] = []
        self.poison: tuple[list[int], int] | None = None  # a prompt that always gets this status
        self.refuse_adapters = ""
        self.answer: Callable[[dict[str, Any]], None] = lambda _body: None
        self.gate = asyncio.Event()  # samples wait for it
        self.gate.set()
        self.load_gate = asyncio.Event()  # loads of adapters wait for it
        self.load_gate.set()
        self.loading = 0  # loads that have come
        self.most_registered = 0
        self.tokens = 0  # computed so far, as GET /metrics has it
        self.looks = 0  # at /metrics
        self.per_look = 0  # tokens that it computes between two looks, beside those of samples
        self.missing_folders = 0  # samples of a registered adapter without a folder: they end the real one
        self.port = 0
        self._arrived: asyncio.Queue[None] = asyncio.Queue()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Again on the same port after stop()."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/load_lora_adapter", self._load),
                web.post("/v1/unload_lora_adapter", self._unload),
                web.post("/v1/completions", self._complete),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As when it dies: connections are cut, adapters forgotten."""
        self.registered.clear()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def arrivals(self, count: int) -> None:
        """Waits for as many samples, since the last call, to be asked for."""
        for _ in range(count):
            await self._arrived.get()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0.fake"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        self.looks += 1
        self.tokens += self.per_look
        return web.Response(text=f'# TYPE x counter\nvllm:generation_tokens_total{{engine="0"}} {self.tokens:.1f}\n')

    async def _models(self, _request: web.Request) -> web.Response:
        data = [{"id": self.base_model, "parent": None}]
        return web.json_response({"data": data + [{"id": name, "parent": self.base_model} for name in self.registered]})

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, folder = body["lora_name"], Path(body["lora_path"])
        self.loading += 1
        await self.load_gate.wait()
        config = json.loads((folder / "adapter_config.json").read_text())
        if self.refuse_adapters or not config.get("target_modules"):
            return error(400, self.refuse_adapters or "Missing required configuration fields: target_modules")
        if name in self.registered:
            return error(400, f"The lora adapter '{name}' has already been loaded.")
        self.loads.append(name)
        self.registered[name] = str(folder)
        self.most_registered = max(self.most_registered, len(self.registered))
        return web.Response(text="Success")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.registered.pop(name, None) is None:
            return error(404, f"The lora adapter '{name}' cannot be found.")
        self.unloads.append(name)
        return web.Response(text="Success")

    async def _complete(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        body = await request.json()
        self.asked.append(body)
        self._arrived.put_nowait(None)
        await self.gate.wait()
        if self.faults:
            return error(*self.faults.pop(0))
        if self.poison is not None and body["prompt"] == self.poison[0]:
            return error(self.poison[1], "no")
        model = body["model"]
        if model != self.base_model:
            if model not in self.registered:
                return error(404, f"The model `{model}` does not exist.")
            self.missing_folders += not Path(self.registered[model]).is_dir()
        choice = {
            "token_ids": [TOKEN],
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.5]},
            "prompt_logprobs": None,
        }
        self.tokens += 1
        usage = {"prompt_tokens": len(body["prompt"]), "prompt_tokens_details": {"cached_tokens": 0}}
        answer = {"choices": [dict(choice) for _ in range(body.get("n", 1))], "usage": usage}
        self.answer(answer)
        return web.Response(text=json.dumps(answer), content_type="application/json")


@contextlib.contextmanager
def in_a_thread(base_model: str) -> Iterator[tuple[FakeVllm, Callable[[Callable[[], Any]], Any]]]:
    """A fake with a loop of its own, for tests that block; and what calls a function in that loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            found = function()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(run(), loop).result(300)

    fake = call(lambda: FakeVllm(base_model))
    call(fake.start)
    try:
        yield fake, call
    finally:
        call(fake.gate.set)
        call(fake.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def error(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": text, "code": status}}, status=status)
