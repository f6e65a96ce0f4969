"""Prompt log-probabilities as Tinker gives them: one value for each prompt token, None for the first.

Upstream: skyrl/tx/utils/generator.py, GeneratorMixin.generate leaves the first out, so every index is off by one.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tx.utils.generator import GenerateOutput, GeneratorMixin

stock_generate = GeneratorMixin.generate


def generate(self: Any, *args: Any, **kwargs: Any) -> GenerateOutput:
    """Wraps GeneratorMixin.generate."""
    output = stock_generate(self, *args, **kwargs)
    if output.prompt_logprobs is not None:
        output.prompt_logprobs = [[None, *row] for row in output.prompt_logprobs]
    return output


def apply() -> None:
    GeneratorMixin.generate = generate
