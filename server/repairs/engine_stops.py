"""An answer may end at a token or at a string, whichever comes first.

Upstream: skyrl/tx/utils/generator.py, GeneratorMixin.generate: an answer that a token has ended fails an assertion
where stop strings are given, and with it all that is sampled beside it.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tx.utils.generator import GenerateOutput, GeneratorMixin, find_string_stop_position


def with_strings(stock: Any) -> Any:
    def generate(*args: Any, sampling_params: list[Any], tokenizer: Any = None, **others: Any) -> GenerateOutput:
        """Wraps GeneratorMixin.generate, which then knows of no string."""
        plain = [one.model_copy(update={"stop_strings": None}) for one in sampling_params]
        output = stock(*args, sampling_params=plain, tokenizer=tokenizer, **others)
        for row, one in enumerate(sampling_params):
            end = find_string_stop_position(output.generated_ids[row], tokenizer, one.stop_strings or [])
            if end is not None:
                output.generated_ids[row] = output.generated_ids[row][:end]
                output.logprobs[row] = output.logprobs[row][:end]
                output.stop_reasons[row] = "stop"
        return output

    return generate


def apply() -> None:
    GeneratorMixin.generate = with_strings(GeneratorMixin.generate)
