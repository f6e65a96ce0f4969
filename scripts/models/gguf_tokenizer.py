"""The tokenizer inside a GGUF file (byte-level BPE, as SmolLM2's) -> tokenizer.json and its companions."""

import sys
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scripts.models.portable_tokenizer import save_portable

SPECIAL_KINDS = (3, 4)  # GGUF's token types: control, user defined
DIGITS_APART = ("smollm",)  # pre-tokenizers, as GGUF names them, that split every digit and then as GPT-2 does


class Pairs(Protocol):
    """A GGUF file's key-value pairs."""

    def __getitem__(self, key: str) -> Any: ...


def build(meta: Pairs) -> Tokenizer:
    """The same tokens under the same ids; exits with one line where the file asks for another pre-tokenizer."""
    kind = meta["tokenizer.ggml.pre"]
    if meta["tokenizer.ggml.model"] != "gpt2" or kind not in DIGITS_APART:
        sys.exit(f"tokenizer.ggml.pre {kind!r}: only {', '.join(DIGITS_APART)} is converted")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in meta["tokenizer.ggml.merges"])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    special = [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind in SPECIAL_KINDS]
    tokenizer.add_special_tokens(special)
    if tokenizer.get_vocab_size() != len(tokens):
        sys.exit(f"tokenizer: {tokenizer.get_vocab_size()} tokens were made of the file's {len(tokens)}")
    return tokenizer


def save_tokenizer(meta: Pairs, directory: Path, *, context: int) -> None:
    """Write the tokenizer with the file's chat template."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=build(meta),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **{name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()},
    )
    wrapped.chat_template = meta["tokenizer.chat_template"]
    save_portable(wrapped, directory)
