"""scripts/recipe: its teacher, its page, and phases whose commands exist."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.config import Config
from harbortrainer.evaluation.arguments import EvalArgs
from harbortrainer.serve.arguments import ServeArgs
from harbortrainer.setting import settings
from harbortrainer.sft_config import SftConfig
from harbortrainer.stats import compare
from scripts.recipes.page import page, read
from tests.conftest import free_port

PHASES = Path("scripts/recipes")


def evaluation(*rewards: list[float]) -> dict[str, Any]:
    tasks = [{"name": f"t{n}", "rewards": of_task} for n, of_task in enumerate(rewards)]
    reward = {"mean": 0.5, "low": 0.25, "high": 0.75}
    return {"per_task": tasks, "reward": reward, "tasks": len(tasks), "trials": sum(map(len, rewards)), "ungraded": 0}


def test_the_page_has_each_policy_with_its_interval_and_the_difference_to_the_one_above(tmp_path: Path) -> None:
    base, tuned = evaluation([0.0, 1.0], [0.0, 0.0]), evaluation([1.0, 1.0], [1.0, 0.0])
    text = page({"base": base, "SFT": tuned})
    lines = text.splitlines()
    assert lines[2] == "| base | 0.500 | 0.250 to 0.750 |  | 2, 4 | 0 |"
    found = compare({"t0": [0.0, 1.0], "t1": [0.0, 0.0]}, {"t0": [1.0, 1.0], "t1": [1.0, 0.0]})
    assert f"| {found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}] |" in lines[3]
    assert found.difference == 0.5 and lines[-1] == "Held-out tasks: t0, t1."
    with pytest.raises(SystemExit, match="RL: was evaluated on other tasks than base"):
        page({"base": base, "RL": evaluation([1.0])})
    with pytest.raises(SystemExit, match=r"has no evaluation\.json: its evaluation has not ended"):
        read(tmp_path)
    for name, policy in (("a", base), ("b", tuned)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text(json.dumps({"policies": [policy]}))
    words = [tmp_path / "page.md", f"base={tmp_path / 'a'}", f"SFT={tmp_path / 'b'}"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.recipes.page", *map(str, words)], check=True, capture_output=True
    )
    assert (tmp_path / "page.md").read_text() == text == done.stdout.decode()[:-1]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("tiny", ["setup", "serve", "teacher", "check", "measure", "teach"]),
        ("easy", ["setup", "tasks", "talks", "model", "serve", "school", "teacher", "check", "teach", "sft"]),
    ],
)
def test_the_phases_name_settings_that_exist(name: str, first: list[str]) -> None:
    text = re.sub(r"\\\n", " ", (PHASES / name).read_text())
    known = {*settings(Config), *settings(EvalArgs), *settings(SftConfig), *settings(ServeArgs)}
    known |= {"n_oracle", "base", "SFT", "RL", "teacher"}
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    names = [line.split()[0].strip("!+") for line in lines]
    assert names[: len(first)] == first and names[-1] == "page"
    assert lines[0].endswith("scripts/setup.sh --dev --server --base-image"), "a fresh clone has no environment"
    given = {word.partition("=")[0].strip('"') for line in lines for word in shlex.split(line.split(None, 2)[2])}
    assert {name for name in given if re.fullmatch(r"[a-z_]+", name) and f"{name}=" in text} <= known
    assert subprocess.run(["bash", "-n", "scripts/recipe"], check=False).returncode == 0


def test_a_teacher_that_cannot_start_says_why(tmp_path: Path) -> None:
    start = "source scripts/gpu/env.sh; start_teacher sh -c 'echo no weights; exit 3'"
    env = {"PATH": os.defpath, "GPU_OUT": str(tmp_path), "TEACHER_PORT": str(free_port())}
    done = subprocess.run(["bash", "-c", start], env=env, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "no weights\n" and not done.stderr
