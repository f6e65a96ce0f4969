"""Policies that guess, made by hand: what is asked does not matter, the next token depends on the last one alone.

The guesser answers \\boxed{N} to everything, N from 1 to 5, each as likely: some answers of a group are right and
others wrong, which is what rl_loop needs to train. The player answers with any of ANSWERS: what some recipe or other
takes for a number, a move, a grade, a program or a tool's call. Nothing is trained for them; an embedding and an output
matrix are written.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scripts.models.portable_tokenizer import save_portable
from scripts.quickstart.shape import Shape, padded, random_weights, save
from scripts.quickstart.vocabulary import CHAT_TEMPLATE, PAD, TURN_END, TURN_START

HEADER, THINK, THOUGHT, BOXED, CLOSE = "assistant\n", "<think>\n", "</think>\n\n", "\\boxed{", "}"
DIGITS = ("1", "2", "3", "4", "5")
MOVES, MOVED = tuple(f"[{place}" for place in range(9)), "]\n"  # of a board of nine places
CALL = "<tool_call>\n<function={0}>\n<parameter={1}>\n{2}\n</parameter>\n</function>\n</tool_call>"
PROGRAM, COMMAND, DONE = "print(int(input()) + 1)", "echo done > /app/done.txt", "All is done."
ANSWERS = (
    *("Guess: 7", "Guess: 512", "Guess: 900", "Is it alive?", "Final Answer: en", "Final Answer: de"),
    *("<answer>B</answer>", "<score>1</score>", "<score>0.2</score>", f"```python\n{PROGRAM}\n```", DONE),
    *("0.75", "Answer: 0", CALL.format("read_page", "page", "1")),
    *(CALL.format("check_solution", "code", PROGRAM), CALL.format("bash", "command", COMMAND)),
)
BABBLE = "Well, "  # followed by anything
CERTAIN = 14.0  # logit of what follows; all else is about 0
VOCABULARY, WIDE = 448, 2048  # tokens learnt from the texts, besides the added ones: the guesser's, the player's
Followers = list[tuple[list[int], list[int]]]  # after any of the first, one of the second, each as likely


def build_tokenizer(texts: Iterable[str], learnt: int, phrases: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of these texts, digits apart, with Qwen3's special tokens and one for each of the phrases."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=learnt, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([PAD, TURN_START, TURN_END])
    added = (HEADER, BOXED, CLOSE, "<think>", "</think>", *phrases)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def guesser(ids: dict[str, int]) -> Followers:
    digits = [ids[digit] for digit in DIGITS]
    boxed, close = ids[BOXED], ids[CLOSE]
    return [([ids[HEADER]], [boxed]), ([boxed], digits), (digits, [close]), ([close], [ids[TURN_END]])]


def player(ids: dict[str, int]) -> Followers:
    """Thinks nothing where it is asked to think."""
    moves, answers = [ids[move] for move in MOVES], [ids[answer] for answer in (*ANSWERS, *"AB", MOVED)]
    often = [BOXED] * 6 + [one for one in ANSWERS if one.startswith("Final") or one == ANSWERS[-1]] * 5
    starts = [*moves, *answers[:-1], ids[BABBLE], *(ids[one] for one in often)]  # as likely at low temperatures
    openings = [([ids[HEADER], ids[THOUGHT]], starts), ([ids[THINK]], [ids[THOUGHT]])]
    return [*openings, *guesser(ids)[1:], (moves, [ids[MOVED]]), (answers, [ids[TURN_END]])]


def guessing_weights(shape: Shape, followers: Followers) -> dict[str, np.ndarray]:
    """Random weights, but for what follows `followers`. A token that is named twice is twice as likely."""
    weights = random_weights(shape, seed=0)
    width = shape.hidden_size
    rng = np.random.default_rng(1)
    table = rng.standard_normal((shape.vocab_size, width)).astype(np.float32)
    table[:, : len(followers)] = 0  # one axis belongs to each pair alone
    head = (rng.standard_normal(table.shape) * 0.1).astype(np.float32)  # what training can tell tokens apart by
    head[:, : len(followers)] = 0
    for axis, (last, following) in enumerate(followers):
        table[last] = 0
        table[last, axis] = np.sqrt(width)  # of the same length as the others, and kept by the final norm
        for token in set(following):
            head[token, axis] = (CERTAIN + np.log(following.count(token))) / np.sqrt(width)
    return weights | {"model.embed_tokens.weight": table, "lm_head.weight": head}


def write_policy(folder: Path, texts: Iterable[str], *, plays: bool = False) -> None:
    """The guesser, or the player, as a Hugging Face directory of the Qwen3 class, 0.1 M parameters."""
    phrases = (THINK, THOUGHT, *MOVES, MOVED, *ANSWERS, BABBLE) if plays else ()
    tokenizer = build_tokenizer(texts, WIDE if plays else VOCABULARY, phrases)
    save_portable(tokenizer, folder)
    ids = tokenizer.get_vocab()
    followers = player(ids) if plays else guesser(ids)
    shape = Shape(
        vocab_size=padded(len(tokenizer)),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        max_position_embeddings=32_768 if plays else 4096,
    )
    save(folder, shape, guessing_weights(shape, followers), turn_end=ids[TURN_END], pad=ids[PAD])
