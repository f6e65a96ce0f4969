"""Answers of try_sdk.py -> one Markdown table: table.py FOLDER. Each answer is FOLDER/SERVER-SDK.json."""

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("create", "train", "sample", "save", "restore", "list", "delete")
MARKS = {True: "yes", False: "no", None: "-"}  # None: left out, because a step that it needs failed
WIDTH = 110  # characters of an error


def row(server: str, answer: dict[str, Any]) -> str:
    steps = answer["steps"]
    marks = [MARKS[steps[name]["ok"]] for name in COLUMNS]
    failed = [(name, step["text"]) for name, step in steps.items() if step["ok"] is False]
    cause = f"{failed[0][0]}: `{failed[0][1][:WIDTH]}`" if failed else ""
    return f"| {answer['sdk']} | {server} | {' | '.join(marks)} | {cause.replace('|', chr(92) + '|')} |"


def newest_first(answer: tuple[str, dict[str, Any]]) -> tuple[str, list[int]]:
    return answer[0], [-int(part) for part in answer[1]["sdk"].split(".") if part.isdigit()]


def main() -> None:
    answers = [(path.name.split("-")[0], json.loads(path.read_text())) for path in Path(sys.argv[1]).glob("*-*.json")]
    print(f"| SDK | server | {' | '.join(COLUMNS)} | first error |")
    print("| --- | --- |" + " --- |" * (len(COLUMNS) + 1))
    for server, answer in sorted(answers, key=newest_first):
        print(row(server, answer))


if __name__ == "__main__":
    main()
