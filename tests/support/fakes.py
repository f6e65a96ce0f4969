"""Small stand-ins for unit tests: a byte-level tokenizer, chat templates, a scripted sampling client, a terminal."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from harbortrainer.backend.contract import TINKER_DOCUMENTS, Contract
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import Sampler

# skyrl 0.4.0 as published
STOCK: Contract = replace(
    TINKER_DOCUMENTS,
    source="measured",
    reduction="example_mean",
    adam={**TINKER_DOCUMENTS.adam, "grad_clip_norm": False},
    frozen_samplers=False,
)

# The logic of Qwen3's own template, without tools: thinking is kept only behind the last user message.
QWEN3 = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content %}"
    "{%- if m.role != 'assistant' %}{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{%- else %}{%- set reasoning = '' %}{%- if '</think>' in content %}"
    "{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or reasoning) %}"
    "{{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}"
    "{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The logic of Llama 3's: a begin token, no newline after a turn, another end token; alternation is demanded.
LLAMA3 = (
    "{{- bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


@cache
def byte_tokenizer(template: str | None, end: str = "<|im_end|>") -> Any:
    """One token a byte, plus the special tokens of the templates above."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    special += ["<|begin|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token="<|begin|>")
    fast.chat_template = template
    return fast


def chat_template(template: str = QWEN3, *, enable_thinking: bool = False) -> ChatTemplate:
    end = "<|eot_id|>" if template == LLAMA3 else "<|im_end|>"
    return ChatTemplate(byte_tokenizer(template, end), enable_thinking=enable_thinking)


@dataclass(frozen=True)
class Request:
    """What the sampling client was asked."""

    prompt_T: list[int]
    max_tokens: int
    temperature: float
    seed: int | None
    stop: list[int]


def response(tokens_T: Sequence[int], *, stop_reason: str = "stop", logprobs_T: Sequence[float] | None = None) -> Any:
    """A `tinker.SampleResponse` in shape; logprobs count down from -0.1."""
    logprobs = [-0.1 * (i + 1) for i in range(len(tokens_T))] if logprobs_T is None else list(logprobs_T)
    return SimpleNamespace(
        sequences=[SimpleNamespace(tokens=list(tokens_T), logprobs=logprobs, stop_reason=stop_reason)]
    )


class ScriptedClient:
    """A sampling client whose `answer(request)` gives a response, raises, or returns None to hang for ever; it may be
    awaited for it.

    With a list: the n-th request gets the n-th text, the last one for ever after.
    """

    def __init__(self, answer: Callable[[Request], Any] | Sequence[str], template: ChatTemplate) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self.template = template

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        assert num_samples == 1
        (chunk,) = prompt.chunks
        request = Request(
            chunk.tokens,  # a copy would cost what the policy's turn costs (bench.wire)
            sampling_params.max_tokens,
            sampling_params.temperature,
            sampling_params.seed,
            sampling_params.stop,
        )
        self.requests.append(request)
        await asyncio.sleep(0)
        result = self._answer(request) if callable(self._answer) else self._next_text()
        if result is None:
            await asyncio.Event().wait()
        if inspect.isawaitable(result):
            result = await result
        return self.encode(result, request.max_tokens) if isinstance(result, str) else result

    def encode(self, text: str, max_tokens: int = 10**6) -> Any:
        """The response that says `text`: ended by the turn's end, or cut at `max_tokens`."""
        ids = [*self.template.tokenizer.encode(text, add_special_tokens=False), self.template.turn_end]
        return response(ids[:max_tokens], stop_reason="length" if len(ids) > max_tokens else "stop")

    def _next_text(self) -> str:
        assert not callable(self._answer)
        return self._answer[min(len(self.requests), len(self._answer)) - 1]


class FakeEnvironment:
    """What the agent needs of a Harbor environment: `reply(command)` gives (return code, stdout) of every command."""

    default_user = None

    def __init__(self, reply: Callable[[str], tuple[int, str]] | None = None) -> None:
        self.commands: list[str] = []
        self.limits: list[int | None] = []
        self.session_id = "fake"
        self._reply = reply or (lambda command: (0, "40\n$ " if "capture-pane" in command else ""))

    async def exec(self, command: str, timeout_sec: int | None = None, **_: Any) -> Any:
        self.commands.append(command)
        self.limits.append(timeout_sec)
        await asyncio.sleep(0)
        code, stdout = self._reply(command)
        return SimpleNamespace(return_code=code, stdout=stdout, stderr=stdout if code else None)


async def let_others_act() -> None:
    """Give the tasks that can run, and those that they wake, their turns. No time would be enough on a busy machine."""
    for _ in range(100):
        await asyncio.sleep(0)


async def ask(sampler: Sampler, prompt_T: Any = (1, 2, 3)) -> Any:
    return await sampler.sample(prompt_T, max_tokens=8, temperature=1.0, stop=[9], seed=4)
