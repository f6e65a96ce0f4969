"""Data in the formats that the recipes ask a hub for, made here: word problems (gsm8k) and short chats (no_robots)."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

NAMES = ("Ana", "Ben", "Chidi", "Dora", "Emil", "Farah", "Goran", "Hana")
THINGS = ("apples", "books", "coins", "drums", "eggs", "flags", "kites", "lamps")
ANSWERS, WEIGHTS = (1, 2, 3, 4, 5), (1, 2, 4, 2, 1)  # small and uneven: a policy that guesses is right at times
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


def word_problem(rng: random.Random) -> dict[str, str]:
    """One row of gsm8k's: question, and an answer whose last line is "#### NUMBER"."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    answer = rng.choices(ANSWERS, WEIGHTS)[0]
    change = rng.randint(1, 4)
    if rng.random() < 0.5 and answer > change:
        start = answer - change
        question = f"{name} has {start} {thing} and buys {change} more. How many {thing} does {name} have now?"
        working = f"{start} + {change} = {answer}"
    else:
        start = answer + change
        question = f"{name} has {start} {thing} and gives away {change}. How many {thing} are left?"
        working = f"{start} - {change} = {answer}"
    return {"question": question, "answer": f"{working}\n#### {answer}"}


def chat(rng: random.Random) -> dict[str, object]:
    """One row of no_robots': a short conversation, and what it was made from."""
    name, thing, colour = rng.choice(NAMES), rng.choice(THINGS), rng.choice(COLOURS)
    asked, told = rng.choice(
        (
            (f"Which colour are the {thing} of {name}?", f"The {thing} of {name} are {colour}."),
            (f"Say in one line what {name} did with the {colour} {thing}.", f"{name} put the {colour} {thing} away."),
            (f"Who has the {colour} {thing}?", f"{name} has the {colour} {thing}."),
        )
    )
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    return {"prompt": asked, "prompt_id": f"{rng.getrandbits(64):016x}", "messages": messages, "category": "Closed QA"}


def write_rows(path: Path, rows: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_data(folder: Path, *, problems: int, chats: int, seed: int = 0) -> list[str]:
    """Both data sets as folders under the names that the recipes load. Returns every text in them."""
    rng = random.Random(seed)
    problem_rows = [word_problem(rng) for _ in range(problems)]
    chat_rows = [chat(rng) for _ in range(chats)]
    gsm8k, no_robots = folder / "openai" / "gsm8k", folder / "HuggingFaceH4" / "no_robots"
    for split, share in (("train", 1), ("test", 8)):
        write_rows(gsm8k / "main" / f"{split}.jsonl", problem_rows[::share])
        write_rows(no_robots / f"{split}.jsonl", chat_rows[::share])
    files = "".join(f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test"))
    (gsm8k / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    return [text for row in [*problem_rows, *chat_rows] for text in texts(row)]


def texts(row: object) -> list[str]:
    """Every string in a row."""
    if isinstance(row, dict):
        return [text for value in row.values() for text in texts(value)]
    if isinstance(row, list):
        return [text for value in row for text in texts(value)]
    return [row] if isinstance(row, str) else []
