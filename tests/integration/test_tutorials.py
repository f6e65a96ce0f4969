"""The tutorials, as a reader runs them: every command of a page, in order, in one shell."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.conftest import ROOT, free_port

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("docker_ready", "server_env")]


def follow(page: str, folder: Path) -> str:
    """The output of all ```bash blocks of a page, run in a folder that has what they name of the repository."""
    for name in ("models", "datasets", "examples"):
        (folder / name).symlink_to(ROOT / name)
    text = (ROOT / "docs" / page).read_text()
    port = str(free_port())
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("8000", port)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "SKYRL_TX_PORT": port, "SKYRL_TX_STATE": str(folder / "server")}
    env |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; trap 'harbortrainer server stop >/dev/null 2>&1' EXIT\n{lines}"],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_train_on_your_own_task(tmp_path: Path) -> None:
    said = follow("tutorial_own_task.md", tmp_path)
    assert len(re.findall(r"^\d/2 note-\d: good", said, re.MULTILINE)) == 2, said
    assert len(read_lines(tmp_path / "runs" / "notes" / "metrics.jsonl")) == 6
    assert (tmp_path / "runs" / "notes" / "report.html").is_file()
    assert (tmp_path / "my-adapter" / "adapter_config.json").is_file()


def test_write_a_venue(tmp_path: Path) -> None:
    follow("tutorial_venue.md", tmp_path)
    run = tmp_path / "runs" / "guesses"
    assert len(read_lines(run / "metrics.jsonl")) == 3
    assert "mine.py" in json.dumps(json.loads((run / "effective.json").read_text()))


def test_find_out_why_a_run_does_not_learn(tmp_path: Path) -> None:
    said = follow("tutorial_report.md", tmp_path)
    bad, good = (read_lines(tmp_path / "runs" / name / "metrics.jsonl") for name in ("bad", "good"))
    assert [row["reward/mean"] for row in bad] == [0, 0] and "groups with signal 0/2" in said
    assert [row["turn/parse_failure_rate"] for row in bad] == [1, 1]
    assert max(row["turn/parse_failure_rate"] for row in good) < 0.5 and max(row["reward/mean"] for row in good) > 0
