"""scripts/sweep.sh: one run for each value, one page; it goes on after a failure and ends at Ctrl-C."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

FAKE = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
for word in "$@"; do
  case "$word" in
    run_name=*) mkdir -p "$RUNS/${word#run_name=}" && echo '{}' >"$RUNS/${word#run_name=}/config.json" ;;
    learning_rate=2) exit 1 ;;
    learning_rate=9) exit 130 ;;
  esac
done
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    fake = tmp_path / "python"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    return {"PATH": "/usr/bin:/bin", "PYTHON": str(fake), "CALLS": str(tmp_path / "calls"), "RUNS": str(tmp_path)}


def sweep(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/sweep.sh", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def calls(environment: dict[str, str]) -> list[str]:
    return Path(environment["CALLS"]).read_text().splitlines()


def test_each_value_has_a_run_and_the_page_compares_all(environment: dict[str, str], tmp_path: Path) -> None:
    logs = f"logs_dir={tmp_path}"
    done = sweep(environment, "train", "learning_rate=1,2,3", "run_name=s", logs, "tasks_dir=t")
    assert done.returncode == 1, "one run failed"
    assert calls(environment) == [
        f"-m src.train {logs} tasks_dir=t learning_rate={value} run_name=s-learning_rate-{value}" for value in (1, 2, 3)
    ] + [
        "-m src.report "
        + " ".join(f"{tmp_path}/s-learning_rate-{value}" for value in (1, 3))
        + f" out={tmp_path}/s-learning_rate.html"
    ]
    assert "s-learning_rate-2 ended with status 1" in done.stderr


def test_ctrl_c_ends_it(environment: dict[str, str], tmp_path: Path) -> None:
    done = sweep(environment, "sft", "learning_rate=9,1", "run_name=s", f"logs_dir={tmp_path}")
    assert done.returncode == 130 and len(calls(environment)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate",), "scripts/sweep.sh train|sft FIELD=A,B,C"),
        (("train", "learning_rate=1"), "give a setting with at least two values"),
        (("train",), "give a setting with at least two values"),
        (("train", "learning_rate=1,2"), "run_name: needed"),
    ],
)
def test_a_wrong_line_says_what_is_right(environment: dict[str, str], words: tuple[str, ...], said: str) -> None:
    done = sweep(environment, *words)
    assert done.returncode != 0 and said in done.stderr
