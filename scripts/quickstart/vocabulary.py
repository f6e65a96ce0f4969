"""The quickstart policy's tokenizer: bytes, and one token for every phrase that its small world is made of.

No merges are learnt: Terminus-2's whole prompt up to the task is one token, a JSON skeleton a handful, a name two or
three syllables. A first prompt is about 35 tokens and an answer about 16, so that two CPU cores can train the policy.
Anything else falls back to bytes.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scripts.quickstart import answers, prompts
from scripts.quickstart.cases import ENDINGS
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.words import EXTENSIONS, SYLLABLES

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, TURN_START, TURN_END)
MOST_BLANK_LINES = 43  # an empty terminal of 40 lines, and what is said after it
CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def literals(templates: Iterable[str]) -> list[str]:
    """What is fixed in templates: the text between their {placeholders}."""
    return [part for template in templates for part in re.split(r"\{\w+\}", template) if len(part) > 1]


def phrases() -> list[str]:
    """Every added token, once. None begins with a newline: the token of blank lines before it would hide it."""
    wordings = [wording for kind in KINDS for wording in kind.wordings]
    commands = [command for kind in KINDS for command in (kind.right, *(wrong.typed for wrong in kind.wrong))]
    shown = [wrong.shown for kind in KINDS for wrong in kind.wrong]
    blank_lines = ["\n" * count for count in range(2, MOST_BLANK_LINES + 1)]
    fixed = [*prompts.PHRASES, *answers.PHRASES, "user\n", "assistant\n"]
    found = [*fixed, *literals([*wordings, *ENDINGS, *commands, *shown]), *EXTENSIONS, ".sh", *SYLLABLES]
    return list(dict.fromkeys([phrase.strip("\n") if phrase[0] == "\n" else phrase for phrase in found] + blank_lines))


def build_tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_of(phrases(), CHAT_TEMPLATE)


def tokenizer_of(added: Iterable[str], chat_template: str) -> PreTrainedTokenizerFast:
    """Bytes, special tokens, and a token for each phrase in `added`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in added])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template
    return wrapped


def load(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(directory))
