"""Renders prompts by the model's chat template without retokenizing sampled text; reads the model's configuration."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from harbortrainer.config import ToolFormat
from harbortrainer.errors import UserError
from harbortrainer.policy.quick_import import import_transformers
from harbortrainer.policy.roles import Offsets, Prompt, roles_of, written_by
from harbortrainer.policy.special_strings import ASSISTANT, THINK_CLOSE, THINK_OPEN, SpecialStrings, with_strings
from harbortrainer.policy.tool_form import MARKER, PROBE, call_form_of_hermes, find_form, json_arguments, takes_greeting
from harbortrainer.policy.tools import CallForm, Message, Tool, hermes

HUB_PAUSE_SEC = 1.0  # before the second request
UNKNOWN_VOCABULARY = 2**31
DATE = "26 Jul 2024"  # the default of Llama 3.1's template, which else writes today's: prompts changed at midnight
GREETED = "You have already said to the user: "
log = logging.getLogger("harbortrainer")


def clean_text(text: str) -> str:
    """`text` without NUL characters and lone surrogates (now `\ufffd`): both break tokenizers and shells."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion as text for the parser, and the reasoning that was cut from it."""

    text: str
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Renderer:
    """The way from conversations to tokens: weights trained with one renderer are worse with another."""

    name: str  # "chat_template:" and the first digits of its SHA-256; "+hermes" where tools have that form
    thinking: str  # the template's switch: "on", "off", or "none" if it has no switch


class ChatTemplate:
    """Token ids of prompts, and text of completions, for one tokenizer."""

    def __init__(self, tokenizer: Any, *, enable_thinking: bool = False, tool_format: ToolFormat = "template") -> None:
        """`tool_format`: tools as the template renders them, or in the system message in the Hermes form.

        Raises UserError: no chat template, one that drops earlier answers, a tokenizer written in Python.
        """
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
        self._offsets = Offsets(tokenizer)
        self._hermes = tool_format == "hermes"
        # A template without the switch ignores it; the renderer then has to say "none".
        has_switch = "enable_thinking" in str(tokenizer.chat_template)
        self._options: dict[str, Any] = {"enable_thinking": enable_thinking} if has_switch else {}
        added = {token for token, flags in tokenizer.added_tokens_decoder.items() if flags.special}
        thinking = {tokenizer.get_added_vocab().get(token, -1) for token in (THINK_OPEN, THINK_CLOSE)}
        self._special_ids = (added | set(tokenizer.all_special_ids)) - thinking
        first = self.continuation("x")[:1]
        self.turn_end: int | None = first[0] if first and first[0] in self._special_ids else None

    @classmethod
    def load(cls, model_name: str, enable_thinking: bool, tool_format: ToolFormat = "template") -> "ChatTemplate":
        """Return the template of a hub model or of a local directory. Raises UserError when it cannot be loaded."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about missing torch, which is not used
        import_transformers()  # slow
        from transformers import AutoTokenizer

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
        template = cls(tokenizer, enable_thinking=enable_thinking, tool_format=tool_format)
        if enable_thinking and template.renderer.thinking == "none":
            log.warning("enable_thinking=true: without effect, the chat template of %s has no such switch", model_name)
        return template

    @cached_property
    def renderer(self) -> Renderer:
        """Identifies this template in a checkpoint."""
        digest = hashlib.sha256(str(self.tokenizer.chat_template).encode()).hexdigest()
        switch = self._options.get("enable_thinking")
        name = f"chat_template:{digest[:12]}{'+hermes' * self._hermes}"
        return Renderer(name, "none" if switch is None else "on" if switch else "off")

    @cached_property
    def call_form(self) -> CallForm:
        """How answers call tools. Raises UserError when the template does not render tools or their results."""
        if self._hermes:
            return call_form_of_hermes(self._render, self._model)

        def read(text: str) -> str:  # its thinking is closed where a header opens it
            return split_thinking(self._plain_text(self._encode(text)), opened=False).text

        return find_form(self._render, read, self._model)

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return the ids of `opening`."""
        return self.opening(messages, tools).ids

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """Get token ids of a whole conversation and the header of the next answer. Special strings in it become text.

        `tools` are declared to the model. A greeting before the first user message goes into the system message where
        the template would not render it as an answer.
        """
        first = next((message["role"] for message in messages if message["role"] != "system"), "")
        if first == ASSISTANT and not takes_greeting(self._render, tools):
            messages = _greeting_moved(messages)
        return self._prompt(self._render, messages, tools, answers=False)

    def continuation(self, new: str | Sequence[Message]) -> list[int]:
        """Return the ids of `following`."""
        return self.following(new).ids

    def following(self, new: str | Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """Get ids from the end of an answer to the end of the next answer's header; the first ends the answer's turn.

        `new`: the text of a user message, or the messages after the answer, rendered together. Special strings in them
        become text.
        """
        messages = [{"role": "user", "content": new}] if isinstance(new, str) else new
        declared = tools if tools and self._tools_return else ()
        return self._prompt(self._after_answer, messages, declared, answers=True)

    def special_strings(self, content: str, role: str = "user") -> int:
        """Return the number of special strings in a message, which are encoded as text."""
        return self._special.count(clean_text(content), role)

    def without_special(self, text: str) -> str:
        """`text` without special strings and tags of tools: for what a simulated user says."""
        return self._special.removed(clean_text(text))

    def broken_special(self, text: str) -> str:
        """`text` with a space within special strings and tags of tools: for servers that read them in a message."""
        return self._special.broken(text)

    def strings_hidden(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
        """Return the number of special strings in messages and declared tools, which are encoded as text."""
        return self._special.total([_clean(message) for message in messages], [_clean(tool) for tool in tools])

    def joined(self, completion_T: Sequence[int], new: str | Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """Return what follows this completion, without the turn's end if the completion ends with it."""
        prompt = self.following(new, tools)
        ended = self.turn_end is not None and bool(completion_T) and completion_T[-1] == self.turn_end
        return Prompt(prompt.ids[1:], prompt.roles[1:]) if ended else prompt

    def completion(self, text: str, thinking: str = "") -> list[int]:
        """Get ids that a policy would sample to answer with `text`; the last one ends the turn. Without thoughts in the
        text they are `thinking`, or empty where the template's header opens them. Tags (<think>, <tool_call>) stay
        tokens, other special strings become text.
        """
        if thinking:
            text = f"{f'{THINK_OPEN}\n' * (not self._header_opens_thinking)}{thinking}\n{THINK_CLOSE}\n\n{text}"
        opened = self._header_opens_thinking and THINK_CLOSE not in text
        closed = self._encode(f"\n{THINK_CLOSE}\n\n") if opened else []
        (shown,), _, hidden = self._special.hide([_cleaned({"role": ASSISTANT, "content": text})])
        if hidden is None:
            ids = self.tokenizer.encode(shown["content"], add_special_tokens=False, split_special_tokens=True)
        else:
            ids = self._special.with_offsets(self._special.named(shown["content"], hidden))[0]
        return [*closed, *ids, *self.stop_token_ids[:1]]

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """The token that ends a turn, then the tokenizer's end of text."""
        ends = [self.turn_end, self.tokenizer.eos_token_id]
        return list(dict.fromkeys(end for end in ends if end is not None))

    def answer(self, completion_T: Sequence[int]) -> Completion:
        """Return the text of a completion without special tokens, split from its `<think>` part."""
        return split_thinking(self._plain_text(completion_T), opened=self._header_opens_thinking)

    def _plain_text(self, tokens: Sequence[int]) -> str:
        kept = [token for token in tokens if token not in self._special_ids]
        return clean_text(self.tokenizer.decode(kept, clean_up_tokenization_spaces=False))

    @cached_property
    def _header_opens_thinking(self) -> bool:
        return self._after_answer([{"role": "user", "content": "x"}]).rstrip().endswith(THINK_OPEN)

    @cached_property
    def _tools_return(self) -> bool:
        """Whether what follows an answer depends on the declared tools; in most templates it does not."""
        shapes = ([{"role": "user", "content": "x"}], [{"role": "tool", "content": "x"}])
        try:
            return any(self._after_answer(new, [PROBE]) != self._after_answer(new) for new in shapes)
        except UserError:
            return not self._hermes

    @property
    def _model(self) -> str:
        return str(self.tokenizer.name_or_path)

    def _after_answer(self, new: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Rendered text after an answer, cut from a dummy conversation: templates treat the last answer specially.

        The dummy answer is plain text: what a template writes for calls would follow the marker.
        """
        conversation = [{"role": "user", "content": "x"}, {"role": ASSISTANT, "content": MARKER}, *new]
        _, marker, after = self._render(conversation, tools).partition(MARKER)
        if not marker:
            raise UserError(
                f"model_name={self._model}: the chat template drops earlier answers, so turns cannot be joined "
                "exactly; use another model"
            )
        return after

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        from jinja2 import TemplateError

        if self._hermes:
            messages, tools = hermes(messages, tools), ()
        try:
            return self.tokenizer.apply_chat_template(
                merge_same_role(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                tokenize=False,
                date_string=DATE,
                **self._options,
            )
        except (TemplateError, TypeError) as error:
            raise UserError(f"model_name={self._model}: the chat template refuses a conversation: {error}") from error

    def _prompt(
        self, render: Callable[..., str], messages: Sequence[Message], tools: Sequence[Tool], *, answers: bool
    ) -> Prompt:
        """Ids and roles of the messages as `render` writes them; `answers`: they follow an action."""

        def text_of(messages: Sequence[Message]) -> tuple[str, bool]:
            shown, declared, hidden = self._special.hide(list(map(_cleaned, messages)), list(map(_clean, tools)))
            text = render(shown, declared)
            return (text, False) if hidden is None else (self._special.named(text, hidden), True)

        text, named = text_of(messages)
        ids, offsets = self._special.with_offsets(text) if named else self._offsets.encode(text)
        return Prompt(ids, roles_of(offsets, written_by(text, messages, lambda ones: text_of(ones)[0], answers)))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def _cleaned(message: Message) -> dict[str, Any]:
    """With text for a missing content, which templates add to other text, and arguments of calls as objects."""
    if not message.get("tool_calls"):
        return {**message, "content": clean_text(message["content"] or "")}
    calls = [_clean(json_arguments(call)) for call in message["tool_calls"]]
    return {**message, "content": clean_text(message["content"] or ""), "tool_calls": calls}


def _clean(value: Any) -> Any:
    """A JSON value with clean strings."""
    return with_strings(value, clean_text)


def _greeting_moved(messages: Sequence[Message]) -> list[Message]:
    """The same with the first answer as a sentence of the system message."""
    at = next(number for number, message in enumerate(messages) if message["role"] == ASSISTANT)
    system = [message["content"] for message in messages[:at]]
    text = "\n\n".join([*system, GREETED + str(messages[at]["content"])])
    return [{"role": "system", "content": text}, *messages[at + 1 :]]


def merge_same_role(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Join neighbours of one role by a blank line: a summary leaves two user messages, which some templates refuse.

    Results of tools and answers with calls stay apart.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        alike = merged and merged[-1]["role"] == message["role"] != "tool"
        if alike and not (message.get("tool_calls") or merged[-1].get("tool_calls")):
            merged[-1]["content"] += "\n\n" + message["content"]
        else:
            merged.append(dict(message))
    return merged


def split_thinking(text: str, *, opened: bool) -> Completion:
    """Cut a leading `<think>…</think>`; `opened`: the prompt ended with `<think>`."""
    body = text.lstrip()
    if not opened and not body.startswith(THINK_OPEN):
        return Completion(text)
    thinking, closed, rest = body.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
    return Completion(rest.lstrip("\n") if closed else "", thinking.strip())


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model's configuration, as far as it is known."""

    architectures: tuple[str, ...] = ()  # empty = unknown
    vocab_size: int = UNKNOWN_VOCABULARY  # on the self-hosted server ids beyond it become NaN, for all its users


@lru_cache
def read_base_model(model_name: str) -> BaseModel:
    """Read config.json of a local directory or of the hub; all is unknown when that fails."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import_transformers()  # takes a second: not at import
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model_name, **hub_options(model_name))
    except (OSError, ValueError, KeyError):
        return BaseModel()
    text = getattr(config, "text_config", config)
    return BaseModel(
        architectures=tuple(config.architectures or ()),
        vocab_size=int(getattr(text, "vocab_size", None) or UNKNOWN_VOCABULARY),
    )


def hub_options(model_name: str) -> dict[str, Any]:
    """Return options of from_pretrained: where the hub is silent only the cache, which saves a minute of retries."""
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
