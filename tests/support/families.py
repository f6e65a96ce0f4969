"""Small tokenizers of four families of models: the same kinds of vocabulary, pre-tokenizer and template as theirs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from harbortrainer.config import ToolFormat
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.special_strings import control_strings
from tests.support.fakes import LLAMA3, QWEN3

WORDS = (
    "the", "file", "user", "system", "assistant", "start", "end", "im", "think", "tool", "call", "INST", "header",
    "turn", "of", "echo", "root", "app", "Hello", "is", "done", "ing", "code", "|>", "<|", "</", "],",
)  # fmt: skip
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
MISTRAL = (
    "{{- bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{- m.content + eos_token }}"
    "{% elif m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
    "{% else %}{{- '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{- bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{- '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """`template`, the tokenizer's control strings, and its added tokens that are not special."""

    name: str
    template: str
    special: tuple[str, ...]
    markup: tuple[str, ...] = ()
    ordinary: tuple[str, ...] = ()  # added tokens that are text
    begin: str | None = None
    end: str = ""
    sentencepiece: bool = False
    specials_in_vocabulary: bool = False


QWEN = Family(
    "qwen3", QWEN3, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<tool_response>", "<think>", "</think>"), end="<|im_end|>",
)  # fmt: skip
LLAMA = Family(
    "llama3", LLAMA3,
    ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    begin="<|begin_of_text|>", end="<|eot_id|>",
)  # fmt: skip
TEKKEN = Family(
    "mistral", MISTRAL, ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    begin="<s>", end="</s>", specials_in_vocabulary=True,
)  # fmt: skip
GEMMA3 = Family(
    "gemma", GEMMA, ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
    ordinary=("\n\n", "\n\n\n", "<b>", "</b>"),
    begin="<bos>", end="<end_of_turn>", sentencepiece=True, specials_in_vocabulary=True,
)  # fmt: skip
FAMILIES = (QWEN, LLAMA, TEKKEN, GEMMA3)
LLAMA_PLAIN = replace(
    LLAMA, name="llama3 with system",
    template="{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' "
    "+ m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set c = bos_token + c %}{% endif %}{{ c }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
)  # fmt: skip
_TEMPLATES = Path(__file__).parent / "templates"
QWEN_TOOLS = replace(
    QWEN, name="qwen3 with tools", template=(_TEMPLATES / "qwen3.jinja").read_text(),
    markup=(*QWEN.markup, "</tool_response>"),
)  # fmt: skip
QWEN_CODER = replace(QWEN_TOOLS, name="qwen3-coder", template=(_TEMPLATES / "qwen3_coder.jinja").read_text())
_TURN, _CALLS, _HEADER = (  # what Qwen3.5 writes otherwise: each answer has a thought, and a header may open one
    "'<|im_start|>' + message.role + '\\n' + message.content",
    "{{- '<|im_start|>assistant' }}",
    "{{- '<|im_start|>assistant\\n' }}",
)
_THOUGHT = "'<think>\\n\\n</think>\\n\\n'"
QWEN_3_5 = replace(
    QWEN_CODER, name="qwen3.5",
    template=QWEN_CODER.template.replace(
        _TURN, f"'<|im_start|>' + message.role + '\\n' + ({_THOUGHT} if message.role == 'assistant' else '')"
        " + message.content",
    ).replace(_CALLS, "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}")
    .replace(_HEADER, _HEADER + "{{- '<think>\\n' if enable_thinking else " + _THOUGHT + " }}"),
)  # fmt: skip
LLAMA_TOOLS = replace(
    LLAMA, name="llama3.1", template=(_TEMPLATES / "llama3_1.jinja").read_text(),
    special=(*LLAMA.special, "<|python_tag|>"),
)  # fmt: skip


def _merges(words: Iterable[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Joins each word from its left; adds the parts to the vocabulary."""
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
            vocabulary.setdefault(word[: end + 1], len(vocabulary))
    return list(merges)


@cache
def tokenizer_of(family: Family) -> Any:
    """A tokenizer with a small vocabulary, and the family's template."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary: dict[str, int] = {}
    if family.specials_in_vocabulary:
        vocabulary |= {name: number for number, name in enumerate((*family.special, *family.ordinary))}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if family.sentencepiece:
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", *map(chr, range(33, 127)), "\n"]
    for letter in alphabet:
        vocabulary.setdefault(letter, len(vocabulary))
    space = "▁" if family.sentencepiece else "Ġ"
    merges = _merges([*WORDS, *(space + word for word in WORDS)], vocabulary)
    if family.sentencepiece:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=family is not QWEN))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT if family is not TEKKEN else r"\[/?[A-Z_]+\]|" + _SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in family.special])
    others = [AddedToken(name, normalized=False) for name in (*family.markup, *family.ordinary)]
    tokenizer.add_tokens(others)
    named = {"bos_token": family.begin} if family.begin else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.end, **named)
    fast.chat_template = family.template
    return fast


def control_ids(chat: ChatTemplate, ids: Sequence[int]) -> list[int]:
    """Those of `ids` that are control tokens."""
    tokenizer = chat.tokenizer
    strings = control_strings(tokenizer.added_tokens_decoder.values(), str(tokenizer.chat_template))
    known = {tokenizer.convert_tokens_to_ids(name) for name in strings}
    return [token for token in ids if token in known]


def chat_of(family: Family, *, enable_thinking: bool = False, tool_format: ToolFormat = "template") -> ChatTemplate:
    """A new template each time: what it builds on first use is built."""
    return ChatTemplate(tokenizer_of(family), enable_thinking=enable_thinking, tool_format=tool_format)
