"""Renders prompts by the model's chat template without retokenizing sampled text; reads the model's configuration."""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from harbortrainer.errors import UserError
from harbortrainer.policy.special_strings import ASSISTANT, THINK_CLOSE, THINK_OPEN, SpecialStrings

MARKER = "\u2063harbortrainer-answer\u2063"  # placeholder for the assistant's answer; no template alters it
HUB_PAUSE_SEC = 1.0  # before the second request
UNKNOWN_VOCABULARY = 2**31
WIDTHS_KNOWN = {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "LlamaForCausalLM"}

Message = Mapping[str, Any]


def clean_text(text: str) -> str:
    """`text` without NUL characters and lone surrogates (now `\ufffd`): both break tokenizers and shells."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion as text for the parser, and the reasoning that was cut from it."""

    text: str
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Renderer:
    """How conversations become tokens: weights trained with one renderer are worse with another."""

    name: str  # "chat_template:" and the first digits of its SHA-256
    thinking: str  # the template's switch: "on", "off", or "none" if it has no switch


class ChatTemplate:
    """Token ids of prompts, and text of completions, for one tokenizer."""

    def __init__(self, tokenizer: Any, *, enable_thinking: bool = False) -> None:
        """Raises UserError: no chat template, one that drops earlier answers, a tokenizer written in Python."""
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise UserError(
                f"model_name: the tokenizer of {tokenizer.name_or_path} has no chat template; "
                "use an instruction-tuned model, or put chat_template.jinja beside its tokenizer"
            )
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise UserError(
                f"model_name: {tokenizer.name_or_path} has a tokenizer without tokenizer.json "
                f"({type(tokenizer).__name__}), which cannot encode special strings of a terminal as text; "
                "use a model that has the file"
            )
        self._special = SpecialStrings(tokenizer)
        # A template without the switch ignores it; the renderer then has to say "none".
        has_switch = "enable_thinking" in str(tokenizer.chat_template)
        self._options = {"enable_thinking": enable_thinking} if has_switch else {}
        added = {token for token, flags in tokenizer.added_tokens_decoder.items() if flags.special}
        thinking = {tokenizer.get_added_vocab().get(token, -1) for token in (THINK_OPEN, THINK_CLOSE)}
        self._special_ids = (added | set(tokenizer.all_special_ids)) - thinking
        first = self.continuation("x")[:1]
        self.turn_end: int | None = first[0] if first and first[0] in self._special_ids else None

    @classmethod
    def load(cls, model_name: str, enable_thinking: bool) -> "ChatTemplate":
        """Template of a hub model or of a local directory. Raises UserError when it cannot be loaded."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about missing torch, which is not used
        from transformers import AutoTokenizer  # slow to import

        try:
            tokenizer = AutoTokenizer.from_pretrained(model_name, **hub_options(model_name))
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            if hub_options(model_name):
                reason = "the model hub does not answer, and the cache does not have it"
            raise UserError(
                f"model_name: no tokenizer for {model_name!r} ({reason}); "
                "give a hub name that this machine can download, or a directory that holds tokenizer.json"
            ) from error
        return cls(tokenizer, enable_thinking=enable_thinking)

    @cached_property
    def renderer(self) -> Renderer:
        """Identifies this template in a checkpoint."""
        digest = hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()
        switch = self._options.get("enable_thinking")
        return Renderer(f"chat_template:{digest[:12]}", "none" if switch is None else "on" if switch else "off")

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a whole conversation and the header of the next answer. Special strings in it become text."""
        shown, hidden = self._special.hide([_cleaned(message) for message in merge_same_role(messages)])
        return self._encode(self._render(shown), hidden)

    def continuation(self, user_message: str) -> list[int]:
        """Ids from the end of an answer to the end of the next answer's header; the first ends the answer's turn.

        Special strings in the message become text.
        """
        (shown,), hidden = self._special.hide([_cleaned({"role": "user", "content": user_message})])
        return self._encode(self._after_answer(shown["content"]), hidden)

    def special_strings(self, content: str, role: str = "user") -> int:
        """Number of special strings in a message, which are encoded as text."""
        return self._special.count(clean_text(content), role)

    def join(self, completion_T: Sequence[int], user_message: str) -> list[int]:
        """The continuation after this completion, without the turn's end if the completion ends with it."""
        ids = self.continuation(user_message)
        ended = self.turn_end is not None and bool(completion_T) and completion_T[-1] == self.turn_end
        return ids[1:] if ended else ids

    def completion(self, text: str) -> list[int]:
        """Ids that a policy would sample to answer with `text`; the last one ends the turn. Without thoughts in the
        text they are empty, where the template's header opens them. Tags (<think>, <tool_call>) stay tokens, other
        special strings become text.
        """
        opened = self._header_opens_thinking and THINK_CLOSE not in text
        closed = self._encode(f"\n{THINK_CLOSE}\n\n") if opened else []
        (shown,), hidden = self._special.hide([_cleaned({"role": ASSISTANT, "content": text})])
        if hidden is None:
            ids = self.tokenizer.encode(shown["content"], add_special_tokens=False, split_special_tokens=True)
        else:
            ids = self._special.encode(shown["content"], hidden)
        return [*closed, *ids, *self.stop_token_ids[:1]]

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """The token that ends a turn, then the tokenizer's end of text."""
        ends = [self.turn_end, self.tokenizer.eos_token_id]
        return list(dict.fromkeys(end for end in ends if end is not None))

    def answer(self, completion_T: Sequence[int]) -> Answer:
        """Text of a completion without special tokens, split from its `<think>` part."""
        kept = [token for token in completion_T if token not in self._special_ids]
        text = clean_text(self.tokenizer.decode(kept, clean_up_tokenization_spaces=False))
        return split_thinking(text, opened=self._header_opens_thinking)

    def decode(self, completion_T: Sequence[int]) -> str:
        """Text of a completion for the agent's parser."""
        return self.answer(completion_T).text

    @cached_property
    def _header_opens_thinking(self) -> bool:
        return self._after_answer("x").rstrip().endswith(THINK_OPEN)

    def _after_answer(self, user_message: str) -> str:
        """Rendered text after an answer, cut from a dummy conversation: templates treat the last answer specially."""
        conversation = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": MARKER},
            {"role": "user", "content": user_message},
        ]
        _, marker, after = self._render(conversation).partition(MARKER)
        if not marker:
            raise UserError("model_name: the chat template drops earlier answers, so turns cannot be joined exactly")
        return after

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self._options
            )
        except TemplateError as error:
            raise UserError(f"model_name: the chat template refuses a conversation: {error}") from error

    def _encode(self, text: str, hidden: Sequence[str] | None = None) -> list[int]:
        """`hidden`: special strings of the contents, for which `text` has stand-ins; None = they have none."""
        if hidden is None:
            return self.tokenizer.encode(text, add_special_tokens=False)
        return self._special.encode(text, hidden)


def _cleaned(message: Message) -> dict[str, Any]:
    return {**message, "content": clean_text(message["content"])}


def merge_same_role(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Join neighbours of one role by a blank line: a summary leaves two user messages, which some templates refuse."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += "\n\n" + message["content"]
        else:
            merged.append(dict(message))
    return merged


def split_thinking(text: str, *, opened: bool) -> Answer:
    """Cut a leading `<think>…</think>`; `opened`: the prompt ended with `<think>`."""
    body = text.lstrip()
    if not opened and not body.startswith(THINK_OPEN):
        return Answer(text)
    thinking, closed, rest = body.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return Answer(rest.lstrip("\n") if closed else "", thinking.strip())


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model's configuration, as far as it is known."""

    architectures: tuple[str, ...] = ()  # empty = unknown
    vocab_size: int = UNKNOWN_VOCABULARY  # on the self-hosted server ids beyond it become NaN, for all its users
    max_positions: int | None = None  # tokens of context; None = unknown, or scaled by rope settings
    rope_type: str = "default"
    lora_width: int | None = None  # inputs and outputs of all layers that may have an adapter; None = unknown


@lru_cache
def read_base_model(model_name: str) -> BaseModel:
    """Reads config.json of a local directory or of the hub; all is unknown when that fails."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig  # takes a second: not at import

    try:
        config = AutoConfig.from_pretrained(model_name, **hub_options(model_name))
    except (OSError, ValueError, KeyError):
        return BaseModel()
    text = getattr(config, "text_config", config)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    scaled = "factor" in rope
    return BaseModel(
        architectures=tuple(config.architectures or ()),
        vocab_size=int(getattr(text, "vocab_size", None) or UNKNOWN_VOCABULARY),
        max_positions=None if scaled else getattr(text, "max_position_embeddings", None),
        rope_type=str(rope.get("rope_type") or rope.get("type") or "default"),
        lora_width=_lora_width(text) if WIDTHS_KNOWN.intersection(config.architectures or ()) else None,
    )


def _lora_width(c: Any) -> int:
    """Sum of (inputs + outputs) over the linear layers of Llama and Qwen3, embedding and head included.

    An adapter of rank r has r parameters for each: A is r x inputs, B is outputs x r (Hu et al. 2021).
    """
    hidden, heads = c.hidden_size, c.num_attention_heads
    head = getattr(c, "head_dim", None) or hidden // heads
    query, key = heads * head, (getattr(c, "num_key_value_heads", None) or heads) * head
    attention = 2 * (hidden + query) + 2 * (hidden + key)
    experts = getattr(c, "num_experts", 0) or 0
    feed_forward = 3 * (hidden + c.intermediate_size)
    if experts:
        feed_forward = max(feed_forward, 3 * experts * (hidden + c.moe_intermediate_size) + hidden + experts)
    return c.num_hidden_layers * (attention + feed_forward) + 2 * (c.vocab_size + hidden)


def hub_options(model_name: str) -> dict[str, Any]:
    """Options of from_pretrained: if the hub does not answer, read only the cache, which saves a minute of retries."""
    return {} if Path(model_name).is_dir() or _hub_answers() else {"local_files_only": True}


@lru_cache
def _hub_answers() -> bool:
    """Whether the hub answers, with any status; true with HF_HUB_OFFLINE."""
    import httpx
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return True
    for pause in (HUB_PAUSE_SEC, 0):
        try:
            get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            return True
        except httpx.TransportError:
            time.sleep(pause)
    return False
