"""Prompt log-probabilities as Tinker gives them: one value for each prompt token, None for the first.

Upstream: skyrl/tx/utils/generator.py, GeneratorMixin.generate leaves the first out, so every index is off by one;
skyrl/tinker/api.py, SampleRequest drops prompt_logprobs_last_n.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import types
from skyrl.tinker.engine import TinkerEngine
from skyrl.tx.utils.generator import GenerateOutput, GeneratorMixin

from repairs.engine_target_prompts import named
from repairs.shared import apply_samples, only_last

stock_generate = GeneratorMixin.generate
stock_sample = TinkerEngine.process_sample


def generate(self: Any, *args: Any, **kwargs: Any) -> GenerateOutput:
    """Wraps GeneratorMixin.generate."""
    output = stock_generate(self, *args, **kwargs)
    if output.prompt_logprobs is not None:
        output.prompt_logprobs = [[None, *row] for row in output.prompt_logprobs]
    return output


def process_sample(self: Any, requests: dict[str, tuple[str, Any]]) -> dict:
    """Wraps TinkerEngine.process_sample."""
    named.by_request = {request_id: asked.targets for request_id, (_, asked) in requests.items() if asked.targets}
    results = stock_sample(self, requests)
    for request_id, (_, asked) in requests.items():
        if isinstance(found := results.get(request_id), types.SampleOutput):
            only_last(found, asked.last_n)
            if asked.targets and asked.targets.alone:
                found.prompt_logprobs = None
    return results


def apply() -> None:
    apply_samples()
    GeneratorMixin.generate = generate
    TinkerEngine.process_sample = process_sample
