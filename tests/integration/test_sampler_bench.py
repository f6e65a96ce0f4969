"""bench.sampler measures a running server, and a measure that fails does not stop the others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT


@pytest.mark.nightly
def test_each_measure_is_a_line(server_url: str, tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "bench.sampler", server_url, "--model", str(MODEL), "--size", "small"]
    command += ["--warm", "0", "--out", str(out), "--only", "trust,kill,publish", "--state", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    lines = {line["measure"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert list(lines) == ["setup", "trust", "kill", "publish"], done.stderr
    assert lines["setup"]["sampler"] == "jax"
    assert lines["trust"]["mean_abs_nats"] < 1e-4 and lines["trust"]["tokens"] == 4 * 8
    assert len(lines["publish"]["publish_all_sec"]) == 2
    parts = lines["publish"]["parts"]
    assert {"save", "first_token", "save_gather", "save_archive", "save_flush"} <= set(parts)
    assert 0 < parts["save_gather"] < parts["save"] < parts["all"]
    assert "vllm.json" in lines["kill"]["failed"]
    assert done.returncode == 1 and done.stderr.strip().endswith("failed: kill")
