"""One page on a recipe: the evaluations of its policies on the same tasks, with intervals and paired differences.

python -m scripts.recipes.page FILE NAME=EVALUATION ...     the first is what the others are compared with
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbortrainer.stats import compare

Value = Mapping[str, Any]


def read(folder: Path) -> Value:
    """The one policy of an evaluation. Exits where it has not ended."""
    if not (file := folder / "evaluation.json").is_file():
        sys.exit(f"{folder} has no evaluation.json: its evaluation has not ended")
    (policy,) = json.loads(file.read_text())["policies"]
    return policy


def page(policies: Mapping[str, Value]) -> str:
    """Markdown. Exits where the tasks of two evaluations differ."""
    first, *_ = policies.values()
    names = [task["name"] for task in first["per_task"]]
    lines = ["| policy | reward | 95 % interval | against the one above | tasks, trials | ungraded |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    above: Value | None = None
    for name, policy in policies.items():
        if [task["name"] for task in policy["per_task"]] != names:
            sys.exit(f"{name}: was evaluated on other tasks than {next(iter(policies))}")
        reward = policy["reward"]
        cells = [
            name,
            f"{reward['mean']:.3f}",
            f"{reward['low']:.3f} to {reward['high']:.3f}",
            difference(above, policy),
        ]
        lines.append(f"| {' | '.join(cells)} | {policy['tasks']}, {policy['trials']} | {policy['ungraded']} |")
        above = policy
    return "\n".join([*lines, "", f"Held-out tasks: {', '.join(names)}."]) + "\n"


def difference(above: Value | None, policy: Value) -> str:
    if above is None:
        return ""
    a, b = ({task["name"]: task["rewards"] for task in one["per_task"]} for one in (above, policy))
    found = compare(a, b)
    return f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m scripts.recipes.page FILE NAME=EVALUATION ...")
    parts = (word.partition("=") for word in sys.argv[2:])
    text = page({name: read(Path(folder)) for name, _, folder in parts})
    Path(sys.argv[1]).write_text(text)
    print(text)
