"""A cap ends a real run with a checkpoint and a status of its own; a plan before and after it spends nothing."""

import json
import re
import sys
from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from tests.support.command_runs import called, command, containers, run

CAP = 5000  # tokens: twice what the first batch takes (2332 seen), and less than nine batches do (900 each, at least)
A_BATCH = 8000  # tokens, at most, of 8 trials and their update


@pytest.mark.nightly
def test_a_capped_run_and_plans(server_url: str, docker_ready: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "capped"
    settings = (f"model_name={tiny_model_dir}", "save_every=0")
    settings += ("eval_tasks=", "allow_family_overlap=false")
    by_token = dict.fromkeys(("prefill", "sample", "train"), 1e6)  # USD for a million: a token costs one
    (tmp_path / "prices.json").write_text(json.dumps({str(tiny_model_dir): by_token}))
    money = (f"max_usd={CAP}", f"prices={tmp_path / 'prices.json'}")
    done = run(command(server_url, tmp_path, *settings, *money, "run_name=capped", "max_steps=9"))
    assert done.returncode == 80, done.stdout + done.stderr
    assert f"max_usd={CAP} is reached" in done.stdout
    assert re.search(r"spent: .* tokens \(.*% .*\), \d\.\d\d container hours, \d\.\d\d USD", done.stdout), done.stdout
    steps = [record["step"] for record in read_lines(folder / "ledger.jsonl") if record["event"] == "trained"]
    assert 1 <= len(steps) < 9
    assert read_lines(folder / "checkpoints.jsonl")[-1]["step"] == len(steps), "all updates are saved"
    assert containers(folder) == []
    row = read_lines(folder / "metrics.jsonl")[-1]
    assert row["spend/tokens"] < CAP + A_BATCH and row["spend/usd"] > 0

    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    resumed = called([sys.executable, "-m", "src.train", "--dry-run", f"resume={folder}"])
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "the run would stop at once" in resumed.stdout and "spent: " in resumed.stdout
    fresh = called(command(server_url, tmp_path, *settings, "--dry-run", "max_steps=2"))
    assert fresh.returncode == 0 and "1 earlier run (capped)" in fresh.stdout, fresh.stdout + fresh.stderr
    assert f"{server_url} answers" in fresh.stdout
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
