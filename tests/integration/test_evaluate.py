"""`python -m src.evaluate` as a user runs it: real server, real Docker, killed and continued."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tinker

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.policy.chat_template import ChatTemplate
from tests.conftest import ROOT
from tests.support.trial_parts import make_task

SEES_MODE = '[ "$HARBORTRAINER_MODE" = eval ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'
NEVER = "echo 0 > /logs/verifier/reward.txt\n"
SMALL = [
    "trials=2",
    "k=1,2",
    "n_parallel_envs=4",
    "max_turns=2",
    "max_tokens=24",
    "context_limit=2048",
]


def make_run(folder: Path, url: str, model: Path) -> Path:
    """A run directory whose checkpoint lies on the server."""
    service = tinker.ServiceClient(base_url=url, api_key="tml-x")
    client = service.create_lora_training_client(str(model), 8, seed=1, train_unembed=False).result()
    path = client.save_state("evaluated").result().path
    service.close("success").result()
    renderer = ChatTemplate.load(str(model), False).renderer
    record = {"step": 3, "path": path, "model_name": str(model), "lora_rank": 8, "renderer": renderer.name}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_name": str(model)}))
    (folder / "checkpoints.jsonl").write_text(json.dumps(record | {"thinking": renderer.thinking}) + "\n")
    return folder


def started(out: Path) -> Counter[str]:
    return Counter(line["trial"] for line in read_lines(out / "ledger.jsonl") if line["event"] == "started")


def test_a_killed_evaluation_goes_on_and_repeats_no_trial(
    server_url: str, tiny_model_dir: Path, docker_ready: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A checkpoint against its base model, on a task that anyone passes who is evaluated and one that nobody passes."""
    make_task(tmp_path / "tasks", name="always", test=SEES_MODE)
    make_task(tmp_path / "tasks", name="never", test=NEVER)
    run, out = make_run(tmp_path / "run", server_url, tiny_model_dir), tmp_path / "out"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "src.evaluate", "backend=skyrl-tx", f"skyrl_tx_url={server_url}", *SMALL,
            f"checkpoint={run}", "against=base", f"tasks_dir={tmp_path / 'tasks'}", f"out={out}",
        ],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 1800
    while len(list(out.glob("trajectories/eval_000000/*.npz"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.stdout and process.stdout.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {path.stem: path.stat().st_ino for path in out.glob("trajectories/*/*.npz")}
    assert not (out / "evaluation.json").exists()

    assert main(["evaluate", f"out={out}"]) == 0
    assert "2 tasks x 2 trials x 2 policies = 8 trials planned" in capsys.readouterr().out
    assert {name: next(out.rglob(f"{name}.npz")).stat().st_ino for name in finished} == finished
    assert all(started(out)[name] == 1 for name in finished)
    found = json.loads((out / "evaluation.json").read_text())
    assert [policy["name"] for policy in found["policies"]] == ["run@3", "base"]
    for policy in found["policies"]:
        assert (policy["trials"], policy["ungraded"], policy["reward"]["mean"]) == (4, 0, 0.5)
        assert [task["rewards"] for task in policy["per_task"]] == [[1.0] * 2, [0.0] * 2]
    assert found["comparison"]["verdict"].endswith("no difference was seen")

    before, trials = (out / "evaluation.json").read_bytes(), started(out)
    assert main(["evaluate", f"out={out}"]) == 0
    assert (out / "evaluation.json").read_bytes() == before
    assert started(out) == trials

    kept = read_lines(out / "conversations" / "eval_000001-tasks.jsonl")
    assert len(kept) == 4
    assert "Write Hello to hello.txt" in kept[0]["messages"][0]["content"]
    assert {kept[0]["messages"][0]["role"], kept[0]["messages"][1]["role"]} == {"user", "assistant"}
