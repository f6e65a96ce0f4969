"""Writes datasets/terminal-easy: 144 Harbor tasks of twelve kinds, 8 for training and 4 held out of each.

python -m scripts.easy.make_tasks [DIRECTORY [TIMES]]

Always the same tasks: datasets/DIGESTS has their digests. The repository has none of their files. TIMES (default 1): as
many training tasks times TIMES, the same held-out tasks. Training tasks share words then.
"""

import argparse
import random
from pathlib import Path

from harbortrainer.commands import fitted
from scripts.easy.kinds import EASY_KINDS
from scripts.easy.words import SEED, EnglishWords, pools
from scripts.quickstart.cases import Case, make_case
from scripts.quickstart.make_tasks import HELD_OUT_LIST, dockerfile, write_task

DIRECTORY = Path("datasets/terminal-easy")
TRAINING, HELD_OUT = 8, 4  # tasks of each kind
SHARING = 2  # tasks of each kind whose files are in one environment: the set needs 6 images
NEXT = 100  # between the numbers of a kind's first training tasks and its next ones


def make_cases(times: int = 1) -> dict[str, Case]:
    """Name -> case; of each kind the training cases come first. With times=1 no two share a name or a content."""
    rng = random.Random(SEED)
    training, unseen, _ = pools()
    words = {False: EnglishWords(rng, training), True: EnglishWords(rng, unseen)}
    cases = {
        f"{kind.name}-{number}": make_case(kind, words[number > TRAINING], rng, wording=number)
        for kind in EASY_KINDS
        for number in range(1, TRAINING + HELD_OUT + 1)
    }
    for again in range(1, times):
        fresh = EnglishWords(rng, training)
        for kind in EASY_KINDS:
            for number in range(1, TRAINING + 1):
                cases[f"{kind.name}-{NEXT * again + number}"] = make_case(kind, fresh, rng, wording=number)
    return cases


def held_out(name: str) -> bool:
    return TRAINING < _number(name) < NEXT


def environments(cases: dict[str, Case]) -> dict[str, str]:
    """Name -> Dockerfile. Tasks of all kinds share one; training and held-out tasks never do."""
    sharing: dict[int, list[Case]] = {}
    for name, case in cases.items():
        sharing.setdefault(_place(name), []).append(case)
    made = {place: dockerfile(together) for place, together in sharing.items()}
    return {name: made[_place(name)] for name in cases}


def write_tasks(directory: Path, times: int = 1) -> dict[str, Case]:
    cases = make_cases(times)
    recipes = environments(cases)
    for name, case in cases.items():
        kind = case.kind.name
        metadata = {
            "category": kind,
            "family": kind,  # not told by the environment, which kinds share
            "difficulty": "easy",
            "split": "held out" if held_out(name) else "training",
            "license": "Apache-2.0",
        }
        write_task(directory, name, case, recipes[name], metadata)
    (directory / HELD_OUT_LIST).write_text("".join(f"{name}\n" for name in cases if held_out(name)))
    return cases


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _place(name: str) -> int:
    return (_number(name) - 1) // SHARING


def main() -> None:
    parser = argparse.ArgumentParser(
        description=fitted(__doc__ or ""), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, nargs="?", default=DIRECTORY, help="%(default)s")
    parser.add_argument("times", type=int, nargs="?", default=1, help="as many training tasks times this")
    given = parser.parse_args()
    names = write_tasks(given.directory, given.times)
    print(f"{given.directory}: {len(names)} tasks, {sum(map(held_out, names))} of them held out")


if __name__ == "__main__":
    main()
