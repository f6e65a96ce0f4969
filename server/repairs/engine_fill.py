"""A wave waits a little for those who were answered by the last one (filling.py).

Upstream: skyrl/tinker/engine.py, TinkerEngine.find_batchable_sample takes what waits: 16 trials fall into two groups
that sample in turns, 11 waves for the work of 6.
"""

# pyright: reportMissingImports=false
import time
from typing import Any

from skyrl.tinker.engine import TinkerEngine

from repairs.engine_turns import arrived
from repairs.filling import Filling

filling = Filling()


def waiting_for_more(stock_find: Any) -> Any:
    def find_batchable_sample(self: Any, session: Any) -> dict[str, Any]:
        """Wraps TinkerEngine.find_batchable_sample. `self.postponed`: requests wait that nothing announces again."""
        found = stock_find(self, session)
        seats = self.backend.config.sample_max_num_sequences
        self.postponed = bool(found) and not filling.is_full(time.monotonic(), list(map(int, found)), seats)
        return {} if self.postponed else found

    return find_batchable_sample


def timing(stock_process: Any) -> Any:
    def process_batch_requests(self: Any, requests: dict, processor: Any, name: str, per_model: bool = False) -> None:
        """Wraps TinkerEngine.process_batch_requests."""
        began = time.monotonic()
        stock_process(self, requests, processor, name, per_model=per_model)
        if requests and name == "sample":
            now = time.monotonic()
            filling.ended(now, len(requests), now - began, arrived(self))

    return process_batch_requests


def apply() -> None:
    TinkerEngine.find_batchable_sample = waiting_for_more(TinkerEngine.find_batchable_sample)
    TinkerEngine.process_batch_requests = timing(TinkerEngine.process_batch_requests)
