"""Data in the formats that the recipes ask a hub for, made here. Each set is a folder under the name that they load."""

import csv
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NAMES = ("Ana", "Ben", "Chidi", "Dora", "Emil", "Farah", "Goran", "Hana")
THINGS = ("apples", "books", "coins", "drums", "eggs", "flags", "kites", "lamps")
ANSWERS, WEIGHTS = (1, 2, 3, 4, 5), (1, 2, 4, 2, 1)  # small and uneven: a policy that guesses is right at times
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
ROWS = {"openai/gsm8k": 160, "HuggingFaceH4/no_robots": 320}
FORECASTS = "prophet-arena.csv"
FEW = 80  # rows of every other set


def word_problem(rng: random.Random) -> Row:
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


def exchange(rng: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    name, thing, colour = rng.choice(NAMES), rng.choice(THINGS), rng.choice(COLOURS)
    return rng.choice(
        (
            (f"Which colour are the {thing} of {name}?", f"The {thing} of {name} are {colour}."),
            (f"Say in one line what {name} did with the {colour} {thing}.", f"{name} put the {colour} {thing} away."),
            (f"Who has the {colour} {thing}?", f"{name} has the {colour} {thing}."),
        )
    )


def chat(rng: random.Random) -> Row:
    """One row of no_robots' and of Tulu 3's: a short conversation, and what it was made from."""
    asked, told = exchange(rng)
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    return {"prompt": asked, "prompt_id": f"{rng.getrandbits(64):016x}", "messages": messages, "category": "Closed QA"}


def thought(rng: random.Random) -> Row:
    """One row of OpenThoughts3's."""
    asked, told = exchange(rng)
    turns = (("human", asked), ("gpt", f"<think>\nIt is said above.\n</think>\n\n{told}"))
    return {"conversations": [{"from": who, "value": text} for who, text in turns]}


def preference(rng: random.Random) -> Row:
    """One row of hh-rlhf's: a conversation with the better and with the worse answer."""
    asked, told = exchange(rng)
    texts = {"chosen": told, "rejected": "I would rather not say."}
    return {which: f"\n\nHuman: {asked}\n\nAssistant: {text}" for which, text in texts.items()}


def deep_problem(rng: random.Random) -> Row:
    """One row of DeepMath's."""
    row = word_problem(rng)
    return {"question": row["question"], "final_answer": row["answer"].split()[-1], "difficulty": 1.0}


def science_choice(rng: random.Random) -> Row:
    """One row of SciKnowEval's: a question of chemistry with four choices."""
    texts = [f"{rng.choice(COLOURS)} {thing}" for thing in rng.sample(THINGS, 4)]
    details = {"level": "L3", "task": "made up", "subtask": "", "source": ""}
    choices = {"label": list("ABCD"), "text": texts}
    row = {"question": f"What did {rng.choice(NAMES)} mix?", "choices": choices, "answerKey": rng.choice("ABCD")}
    return row | {"domain": "Chemistry", "type": "mcq-4-choices", "details": details}


def program(rng: random.Random) -> Row:
    """One row of DeepCoder's: a problem, and tests of what a program reads and writes."""
    more = rng.randint(1, 3)
    pairs = [{"input": f"{given}\n", "output": f"{given + more}\n", "testtype": "stdin_stdout"} for given in (1, 7)]
    problem = f"Read a whole number and write it plus {more}."
    return {"problem": problem, "tests": json.dumps(pairs), "metadata": "{}", "starter_code": ""}


def sentence(rng: random.Random) -> Row:
    """One row of WikiText's."""
    return {"text": f" {exchange(rng)[1]} It had been so {rng.choice(('after', 'before', 'until'))} then . \n"}


def criteria(rng: random.Random) -> Row:
    """One row of Feedback Collection's: what is asked, a good answer, and what earns which score."""
    asked, told = exchange(rng)
    scores = {f"orig_score{score}_description": f"{score} of 5 words are right." for score in range(1, 6)}
    return {"orig_instruction": asked, "orig_criteria": "Is it right?", "orig_reference_answer": told} | scores


def forecasts(rng: random.Random) -> list[Row]:
    """Prophet Arena's table: half of the markets close before the recipe's date of the split, half open after it."""
    rows: list[Row] = []
    for number in range(FEW):
        asked, told = exchange(rng)
        month = "2025-09" if number % 2 else "2025-11"
        name, colour = rng.choice(NAMES), rng.choice(COLOURS)
        row = {"submission_id": f"s{number}", "event_ticker": f"e{number}", "title": asked, "category": "Made up"}
        row |= {"markets": json.dumps([name]), "market_outcome": json.dumps({name: rng.randint(0, 1)})}
        row |= {"sources": json.dumps([{"title": colour, "summary": told, "ranking": 1}])}
        rows.append(row | {"snapshot_time": f"{month}-01T00:00:00Z", "close_time": f"{month}-09T00:00:00Z"})
    return rows


SETS: dict[str, tuple[Callable[[random.Random], Row], dict[str, tuple[str, ...]]]] = {
    "openai/gsm8k": (word_problem, {"main": ("train", "test")}),
    "HuggingFaceH4/no_robots": (chat, {"default": ("train", "test")}),
    "allenai/tulu-3-sft-mixture": (chat, {"default": ("train",)}),
    "open-thoughts/OpenThoughts3-1.2M": (thought, {"default": ("train",)}),
    "Anthropic/hh-rlhf": (preference, {"default": ("train", "test")}),
    "zwhe99/DeepMath-103K": (deep_problem, {"default": ("train",)}),
    "Salesforce/wikitext": (sentence, {"wikitext-103-raw-v1": ("train",)}),
    "prometheus-eval/Feedback-Collection": (criteria, {"default": ("train",)}),
    "hicai-zju/SciKnowEval": (science_choice, {"default": ("test",)}),
    "agentica-org/DeepCoder-Preview-Dataset": (
        program,
        {"primeintellect": ("train",), "taco": ("train",), "lcbv5": ("train", "test"), "codeforces": ("test",)},
    ),
}  # what makes a row, and the splits of each configuration


def write_rows(path: Path, rows: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_set(folder: Path, rows: list[Row], configurations: dict[str, tuple[str, ...]]) -> None:
    """A test split beside a training split is every eighth row of it."""
    head = ["---", "configs:"]
    for name, splits in configurations.items():
        head += [f"- config_name: {name}", "  data_files:"]
        for split in splits:
            head += [f"  - split: {split}", f"    path: {name}/{split}.jsonl"]
            write_rows(folder / name / f"{split}.jsonl", rows[:: 8 if split == "test" and len(splits) > 1 else 1])
    (folder / "README.md").write_text("\n".join([*head, "---", ""]))


def write_table(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as table:
        writer = csv.DictWriter(table, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_tasks(folder: Path, command: str, reward: str) -> None:
    """Two tasks of Harbor's form, solved by `command`; `reward`: a test of the shell."""
    graded = f"mkdir -p /logs/verifier\n{reward} && earned=1\necho ${{earned:-0}} > /logs/verifier/reward.txt\n"
    for name in ("first", "second"):
        files = {
            "instruction.md": f"Do this in /app, the {name} time: {command}\n",
            "environment/Dockerfile": "FROM harbortrainer/base:bookworm\nWORKDIR /app\n",
            "tests/test.sh": graded,
        }
        for path, text in files.items():
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)


def write_data(folder: Path, seed: int = 0) -> list[str]:
    """Every set of SETS, and FORECASTS. Returns every text in them."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    write_table(folder / FORECASTS, table := forecasts(random.Random(seed)))
    found = [text for row in table for text in texts(row)]
    for name, (make, configurations) in SETS.items():
        rows = [make(rng) for _ in range(ROWS.get(name, FEW))]
        write_set(folder / name, rows, configurations)
        found += [text for row in rows for text in texts(row)]
    return found


def texts(row: object) -> list[str]:
    """Every string in a row."""
    if isinstance(row, dict):
        return [text for value in row.values() for text in texts(value)]
    if isinstance(row, list):
        return [text for value in row for text in texts(value)]
    return [row] if isinstance(row, str) else []
