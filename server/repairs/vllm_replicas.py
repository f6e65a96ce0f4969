"""Which of several vLLM servers computes a sample: the one whose prefix cache holds most of the prompt.

Upstream: skyrl/tinker/types.py, make_routing_session_id gives each turn of a trial another key, so that no turn finds
the cache of the turn before it. Here turns of a trial, and trials of a group (one first prompt), stay together.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from repairs.vllm_client import Vllm

BLOCK = 256  # tokens
KNOWN_BLOCKS = 1 << 16
UNEVEN, AHEAD = 1.5, 4  # a replica with more than UNEVEN x the mean in flight, and AHEAD more than the least, is full


class Replicas:
    """The servers, and which of them has seen which blocks of tokens under which adapter."""

    def __init__(self, servers: Sequence[Vllm]) -> None:
        self.servers = tuple(servers)
        self._seen: OrderedDict[int, Vllm] = OrderedDict()

    @contextmanager
    def chosen(self, prompt: Sequence[int], model: str) -> Iterator[Vllm]:
        """`choose`; the server counts the request as in flight within the block."""
        server = self.choose(prompt, model)
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1

    def choose(self, prompt: Sequence[int], model: str) -> Vllm:
        """A server that is up, where one is; remembers the prompt's whole blocks as seen there."""
        able = [server for server in self.servers if not server.down] or list(self.servers)
        least = min(able, key=lambda server: server.in_flight)
        keys = block_keys(prompt, model) if len(self.servers) > 1 else []
        known = next((self._seen[key] for key in reversed(keys) if key in self._seen), least)
        chosen = known if known in able and not is_full(known, able) else least
        for key in keys:
            self._seen[key] = chosen
            self._seen.move_to_end(key)
        while len(self._seen) > KNOWN_BLOCKS:
            self._seen.popitem(last=False)
        return chosen


def is_full(server: Vllm, able: Sequence[Vllm]) -> bool:
    loads = [one.in_flight for one in able]
    return server.in_flight > UNEVEN * sum(loads) / len(loads) and server.in_flight >= min(loads) + AHEAD


def block_keys(prompt: Sequence[int], model: str) -> list[int]:
    """A key for each whole block: of the block, all blocks before it, and the adapter."""
    keys, key = [], hash(model)
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        key = hash((key, tuple(prompt[start : start + BLOCK])))
        keys.append(key)
    return keys
