"""Writes datasets/quickstart: Harbor tasks of every kind, a third of them held out.

python -m scripts.quickstart.make_tasks [DIRECTORY]
"""

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.quickstart.cases import Case, Kind, make_case, quoted
from scripts.quickstart.kinds import KINDS
from scripts.quickstart.words import Words

SEED = 20261121
TRAINING, HELD_OUT = 4, 2  # tasks of each kind
HELD_OUT_LIST = "held_out.txt"

_TASK_TOML = """\
schema_version = "1.4"

[task]
name = "harbortrainer/{name}"

[metadata]
{metadata}

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 60.0

[environment]
build_timeout_sec = 300.0
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""

_TEST = """\
#!/bin/bash
# 1 when the task is done, else 0
reward=0
if {check}; then
  reward=1
fi
mkdir -p /logs/verifier
echo "$reward" > /logs/verifier/reward.txt
"""


def make_cases(seed: int = SEED) -> dict[str, Case]:
    """Name -> case; of each kind the training cases come first. No two cases share a name or a content."""
    rng = random.Random(seed)
    words = Words(rng)
    names = [(kind, number) for kind in KINDS for number in range(TRAINING + HELD_OUT)]
    return {f"{kind.name}-{number + 1}": make_case(kind, words, rng, wording=number) for kind, number in names}


def held_out(name: str) -> bool:
    return int(name.rpartition("-")[2]) > TRAINING


def reserved_words() -> set[str]:
    """The made-up words of all tasks, which no transcript of the pretraining may use."""
    return {word for case in make_cases().values() for word in case.words}


def dockerfile(cases: Sequence[Case]) -> str:
    """One for all tasks of a kind, so that their image is built once: every task has its own files in it."""
    files = [f"printf '%s\\n' {quoted(case.lines)} > {case.start_file}" for case in cases if case.start_file]
    text = "FROM harbortrainer/base:bookworm\nWORKDIR /app\n"
    return text + ("RUN " + " && \\\n    ".join(files) + "\n" if files else "")


def write_task(directory: Path, name: str, case: Case, environment: str, metadata: Mapping[str, str]) -> None:
    """Write directory/name: `environment` is its Dockerfile, `metadata` the table of that name in its task.toml."""
    table = "\n".join(f'{key} = "{value}"' for key, value in metadata.items())
    contents = {
        "task.toml": _TASK_TOML.format(name=name, metadata=table),
        "instruction.md": case.instruction + "\n",
        "environment/Dockerfile": environment,
        "tests/test.sh": _TEST.format(check=case.check),
        "solution/solve.sh": f"#!/bin/bash\ncd /app\n{case.right}\n",
    }
    for path, text in contents.items():
        file = directory / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if path.endswith(".sh") else 0o644)


def write_tasks(directory: Path) -> dict[str, Case]:
    cases = make_cases()
    kinds: dict[Kind, list[Case]] = {}
    for case in cases.values():
        kinds.setdefault(case.kind, []).append(case)
    for name, case in cases.items():
        metadata = {"kind": case.kind.name, "split": "held out" if held_out(name) else "training"}
        write_task(directory, name, case, dockerfile(kinds[case.kind]), metadata)
    names = [name for name in cases if held_out(name)]
    (directory / HELD_OUT_LIST).write_text("\n".join(names) + "\n")
    return cases


def main(directory: Path) -> None:
    names = write_tasks(directory)
    print(f"{directory}: {len(names)} tasks, {sum(map(held_out, names))} of them held out")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "datasets/quickstart"))
