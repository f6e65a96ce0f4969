"""A policy that guesses: asked anything, it answers \\boxed{N} with N from 1 to 5, each as likely.

So some of a group's answers are right and others wrong, which is what rl_loop needs to train. Nothing is trained for
it: the next token depends on the last one alone, through an embedding and an output matrix that are written by hand.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.models.portable_tokenizer import save_portable
from scripts.quickstart.shape import Shape, padded, random_weights, save
from scripts.quickstart.vocabulary import CHAT_TEMPLATE, PAD, TURN_END, TURN_START

HEADER, BOXED, CLOSE = "assistant\n", "\\boxed{", "}"
DIGITS = ("1", "2", "3", "4", "5")
CERTAIN = 14.0  # logit of what follows; all else is about 0
VOCABULARY = 448  # tokens learnt from the texts, besides the added ones


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of these texts, digits apart, with Qwen3's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([PAD, TURN_START, TURN_END])
    added = (HEADER, BOXED, CLOSE, "<think>", "</think>")
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def guessing_weights(shape: Shape, followers: dict[int, list[int]]) -> dict[str, np.ndarray]:
    """Random weights whose next token, after a key of `followers`, is one of its ids, each as likely."""
    weights = random_weights(shape, seed=0)
    width = shape.hidden_size
    rng = np.random.default_rng(1)
    table = rng.standard_normal((shape.vocab_size, width)).astype(np.float32)
    table[:, : len(followers)] = 0  # one axis belongs to each key alone
    head = (rng.standard_normal(table.shape) * 0.1).astype(np.float32)  # what training can tell tokens apart by
    head[:, : len(followers)] = 0
    for axis, (last, following) in enumerate(followers.items()):
        table[last] = 0
        table[last, axis] = np.sqrt(width)  # of the same length as the others, and kept by the final norm
        head[following, axis] = CERTAIN / np.sqrt(width)
    return weights | {"model.embed_tokens.weight": table, "lm_head.weight": head}


def write_policy(folder: Path, texts: Iterable[str]) -> None:
    """The policy as a Hugging Face directory of the Qwen3 class, 0.1 M parameters."""
    tokenizer = build_tokenizer(texts)
    save_portable(tokenizer, folder)
    ids = tokenizer.get_vocab()
    digits = [ids[digit] for digit in DIGITS]
    followers = {ids[HEADER]: [ids[BOXED]], ids[BOXED]: digits, ids[CLOSE]: [ids[TURN_END]]}
    followers |= {digit: [ids[CLOSE]] for digit in digits}
    shape = Shape(vocab_size=padded(len(tokenizer)), hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    save(folder, shape, guessing_weights(shape, followers), turn_end=ids[TURN_END], pad=ids[PAD])
