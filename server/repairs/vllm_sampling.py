"""One sample from vLLM servers, whatever they do meanwhile: restarts, lost adapters, aborted answers.

Upstream: skyrl/tinker/extra/external_inference.py makes each failure final.
Nothing of skyrl is imported here: the unit tests run without it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repairs.vllm_adapters import Adapters
from repairs.vllm_client import Ask, Away, NotServed, Refused, Vllm
from repairs.vllm_replicas import Replicas
from repairs.vllm_status import read_status, trouble

WAIT_SEC, PAUSE_SEC, SAY_EVERY_SEC = 600.0, 1.0, 30.0
MOST_LOST = 3  # times vLLM may end while it computes one request
MOST_FAILED = 5  # times it may fail at a request, before it must show that it samples others


class Sampling:
    """`status_file`: what the supervisor writes; None without one. `say`: takes lines for the server's log."""

    def __init__(
        self,
        servers: Sequence[Vllm],
        adapters: Adapters,
        base_model: str,
        status_file: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self.servers, self.adapters, self.base_model = tuple(servers), adapters, base_model
        self.replicas, self._status_file, self._say_line = Replicas(servers), status_file, say
        self._said, self._waiting, self.wait_sec = -SAY_EVERY_SEC, 0, WAIT_SEC

    async def sample(self, ask: Ask, model_id: str, checkpoint_id: str, weights: str | None) -> dict[str, Any]:
        """The fields of skyrl's SampleOutput; waits for vLLM's restarts, `wait_sec` at most. Raises Refused.

        `model_id`: "" for the base model. `weights`: the version of the sampler's file that was asked for.
        """
        ended: set[tuple[str, int]] = set()
        failed: Counter[Vllm] = Counter()
        end = time.monotonic() + (limit := self.wait_sec)
        while True:
            try:
                return await self._try(ask, model_id, checkpoint_id, weights)
            except NotServed as error:
                cause = f"vLLM does not serve the model: {error}"
            except Away as error:
                cause = str(error)
                if error.life is not None:
                    ended.add(error.life)
                if error.failing is not None:
                    await self._blame(error.failing, failed, cause)
            if len(ended) >= MOST_LOST:
                raise Refused(f"vLLM ended {len(ended)} times while it computed this request ({cause})")
            left = end - time.monotonic()
            if left <= 0:
                raise Refused(f"no sample within {limit:.0f} s: {cause}{trouble(read_status(self._status_file))}")
            self._waiting += 1
            try:
                self._say(cause)
                await self._pause(left)
            finally:
                self._waiting -= 1

    async def _blame(self, server: Vllm, failed: Counter[Vllm], cause: str) -> None:
        """Counts a failure. Raises Refused when the server fails at this request alone; one that ends fails at all."""
        failed[server] += 1
        if failed[server] % MOST_FAILED == 0 and await server.samples(self.base_model):
            raise Refused(f"vLLM failed at this request {failed[server]} times and samples others ({cause})")

    async def _try(self, ask: Ask, model_id: str, checkpoint_id: str, weights: str | None) -> dict[str, Any]:
        """Raises Refused, NotServed, Away."""
        if not model_id:
            with self.replicas.chosen(ask.prompt, self.base_model) as server:
                return await server.sample(ask, self.base_model)
        async with self.adapters.held(model_id, checkpoint_id, weights) as adapter:
            with self.replicas.chosen(ask.prompt, adapter.name) as server:
                await self.adapters.load(adapter, server)
                try:
                    return await server.sample(ask, adapter.name)
                except NotServed:
                    adapter.on.discard(server)
                    raise

    async def _pause(self, limit_sec: float) -> None:
        """PAUSE_SEC, and until a server answers. Raises Refused when the supervisor has given up."""
        end = time.monotonic() + limit_sec
        await asyncio.sleep(PAUSE_SEC)
        while all(server.down for server in self.servers) and time.monotonic() < end:
            replicas = read_status(self._status_file)
            if replicas and all(one["state"] == "given up" for one in replicas):
                raise Refused(f"vLLM does not run{trouble(replicas)}")
            coming = [server.coming() for server in self.servers]
            await asyncio.wait(coming, timeout=PAUSE_SEC, return_when=asyncio.FIRST_COMPLETED)

    def _say(self, cause: str) -> None:
        """One line in SAY_EVERY_SEC, for all requests that wait."""
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_SEC:
            self._said = now
            self._say_line(f"Sampling: {cause}; {self._waiting} requests wait and are tried again")

    def state(self) -> dict[str, Any]:
        """For healthz. `replicas` are states; counted since the start: prompt tokens, those read from the prefix cache,
        and how adapters came (Adapters.counts).
        """
        known = read_status(self._status_file)
        return {
            "replicas": [one["state"] for one in known] or ["away" if one.down else "ready" for one in self.servers],
            "in_flight": sum(server.in_flight for server in self.servers),
            "adapters": len(self.adapters.known),
            "prompt_tokens": sum(server.prompt_tokens for server in self.servers),
            "cached_tokens": sum(server.cached_tokens for server in self.servers),
            **self.adapters.counts,
        }
