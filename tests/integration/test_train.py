"""`python -m src.train` as a user runs it: real server, real Docker, a kill, a resume, wrong input."""

import json
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from harbor.viewer import create_app

from harbortrainer.cli.main import main
from harbortrainer.docker.keeping.cleaning import tidy
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.trajectories import read_batch, read_log_ratios
from harbortrainer.watch.wandb_log import EVALUATION, TRAINING
from tests.conftest import MODEL, ROOT
from tests.support.command_runs import HELD_OUT, TASKS, batches, called, command, containers, refused, run, start, until
from tests.support.pty_parts import on_terminal
from tests.support.terminal import Terminal
from tests.support.wandb_server import synced

COLUMNS = 400  # no line of ours is longer


@pytest.fixture(scope="module")
def whole_run(server_url: str, docker_ready: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps without interruption, on a terminal, with wandb offline. A batch's trials fill the server's waves."""
    logs = tmp_path_factory.mktemp("runs")
    arguments = ("run_name=whole", "max_steps=3", "lr_schedule=linear", "wandb_project=test", "n_parallel_envs=8")
    status, sent = on_terminal(command(server_url, logs, *arguments), columns=COLUMNS, rows=40, WANDB_API_KEY="")
    assert status == 0, sent
    (logs / "terminal").write_text(sent, newline="")
    return logs / "whole"


def test_whole_run_trains_and_says_what_it_did(whole_run: Path):
    rows = read_lines(whole_run / "metrics.jsonl")
    assert [row["global_step"] for row in rows] == [0, 1, 2, 3]
    assert "eval/reward_mean" in rows[0] and "eval/reward_mean" in rows[3]
    assert all(row["rollout/trials"] == 8 and row["group/trials_lost"] == 0 for row in rows[1:])
    trained = [row for row in rows[1:] if not row["train/skipped_batch"]]
    assert trained, "no batch had any signal"
    for row in trained:
        scheduled = 3e-3 * (4 - row["global_step"]) / 3
        assert row["optim/learning_rate"] == pytest.approx(scheduled)
        assert row["optim/learning_rate_applied"] == pytest.approx(scheduled)
        assert row["train/tokens_per_unique_token"] == 1.0
        assert row["train/datums_per_trajectory"] == 1.0
        assert row["logprobs/max_abs_difference"] <= 1e-3


def test_whole_run_shows_a_live_view_and_leaves_only_lines_of_ours(whole_run: Path):
    sent = (whole_run.parent / "terminal").read_bytes().decode()
    for shown in ("step 2: sampling", "evaluation after step 3", "in command"):
        assert shown in sent
    terminal = Terminal(COLUMNS, 40)
    terminal.feed(sent)  # refuses codes that it does not know
    assert terminal.cursor_shown
    strays = [line for line in terminal.text.splitlines() if not re.fullmatch(r"\[ {0,2}\d+:\d\d\.\d\] \S.*", line)]
    assert strays == []
    said = ["run directory ", "held-out after step 0: ", "step 1/3  reward ", "step 3/3  reward ", "trials: ", "done; "]
    told = iter(terminal.text.splitlines())
    assert [text for text in said if any(line[11:].startswith(text) for line in told)] == said
    assert "step 1/3  reward " in (whole_run / "run.log").read_text()


def test_whole_run_leaves_its_files_and_nothing_else(whole_run: Path):
    assert {p.name for p in whole_run.iterdir()} >= {"config.json", "report.html", "wandb", "versions.json"}
    steps = [record["step"] for record in read_lines(whole_run / "checkpoints.jsonl")]
    assert steps[-2:] == [2, 3] and len(steps) <= 3, "the newest two, and the best"
    trial = whole_run / "rollouts" / "step_000000" / "s000000-p00-g00"
    assert (trial / "result.json").is_file() and (trial / "agent" / "trajectory.json").is_file()
    assert (trial.parent / "config.json").is_file() and (trial.parent / "result.json").is_file()
    assert list((whole_run / "wandb").glob("offline-run-*"))
    trained = [record for record in read_lines(whole_run / "ledger.jsonl") if record["event"] == "trained"]
    for record in trained:
        stored = read_batch(whole_run / "trajectories" / f"step_{record['step']:06d}")
        for name in record["trials"]:
            ratios = read_log_ratios(whole_run, f"step_{record['step']:06d}", name)
            assert ratios is not None and np.abs(ratios).max() <= 1e-3, "the same weights sampled and trained"
            assert len(ratios) == sum(len(turn.completion_tokens_T) for turn in stored[name].turns)
    assert main(["replay", str(whole_run)]) == 0, "not the datums that were sent"
    assert containers(whole_run) == []


def test_harbors_viewer_shows_the_run(whole_run: Path):
    """Jobs with their mean reward, trials with theirs, trajectories, verifier output: by the viewer's own program."""
    viewer = TestClient(create_app(whole_run / "rollouts", mode="jobs"))

    def shown(path: str) -> Any:
        answer = viewer.get(f"/api/jobs{path}", params={"page_size": 100})
        assert answer.status_code == 200, answer.text
        return answer.json()

    jobs = {job["name"]: job for job in shown("")["items"]}
    assert sorted(jobs) == ["eval_000000", "eval_000003", "step_000000", "step_000001", "step_000002"]
    for row in read_lines(whole_run / "metrics.jsonl")[1:]:
        job = jobs[f"step_{row['global_step'] - 1:06d}"]
        [evaluated] = job["evals"].values()
        assert evaluated["metrics"] == [{"mean": pytest.approx(row["reward/mean"])}]
        assert job["agents"] == ["terminus-2"] and job["n_total_trials"] == job["n_completed_trials"] == 8
        trials = shown(f"/{job['name']}/trials")["items"]
        stored = read_batch(whole_run / "trajectories" / job["name"])
        assert {trial["name"]: trial["reward"] for trial in trials} == {n: t.reward for n, t in stored.items()}
    assert sum(task["n_trials"] for task in shown("/step_000000/tasks")["items"]) == 8
    trial = "/step_000000/trials/s000000-p00-g00"
    assert [step["source"] for step in shown(f"{trial}/trajectory")["steps"]][:2] == ["user", "agent"]
    assert shown(f"{trial}/verifier-output")["stdout"] is not None
    assert {"agent/trajectory.json", "result.json"} <= {file["path"] for file in shown(f"{trial}/files")}


def test_the_run_records_what_it_really_trained_with(whole_run: Path):
    effective = json.loads((whole_run / "effective.json").read_text())
    assert effective["server"]["contract"].startswith("measured")
    assert effective["loss"]["loss_fn"] == "importance_sampling" and effective["loss"]["server_reduction"] == "sum"
    assert effective["optimizer"]["lr_schedule"] == "linear" and effective["optimizer"]["beta2"] == 0.95
    checkpoint = read_lines(whole_run / "checkpoints.jsonl")[-1]
    assert checkpoint["renderer"].startswith("chat_template:") and checkpoint["thinking"] == "none"
    assert effective["policy"]["renderer"] == checkpoint["renderer"]


def test_held_out_tasks_are_never_trained_on(whole_run: Path):
    trained = {name for batch in batches(whole_run) for name in batch}
    assert not trained & set(HELD_OUT.split(","))
    assert len(trained) > 2


def stored(folder: Path, step: int) -> dict[str, Any]:
    """Harbor's result of each trial of a batch that is on disk."""
    names = [path.stem for path in (folder / "trajectories" / f"step_{step:06d}").glob("*.npz")]
    return {name: json.loads((folder / f"rollouts/step_{step:06d}/{name}/result.json").read_text()) for name in names}


def test_run_stopped_then_killed_goes_on_each_time(server_url: str, whole_run: Path, tmp_path: Path):
    """Ctrl-C in the second batch: the weights are saved, and the same command line goes on. kill -9 in what is left.

    Finished trials are kept, the same batches follow, nothing leaks.
    """
    folder = tmp_path / "stopped"
    arguments = command(
        server_url, tmp_path, "run_name=stopped", "max_steps=2", "lr_schedule=linear", "save_every=2",
        "wandb_project=test", "n_parallel_envs=2",
    )  # fmt: skip
    process = start(arguments)
    until(process, lambda: len(list((folder / "trajectories" / "step_000001").glob("*.npz"))) >= 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=1800)
    assert process.returncode == 130, output
    assert f"continue with: python -m src.train resume={folder}" in output and "Traceback" not in output
    assert containers(folder) == []
    assert [record["step"] for record in read_lines(folder / "checkpoints.jsonl")] == [0, 1]
    stopped = stored(folder, 1)

    process = start(arguments)
    until(process, lambda: len(list((folder / "trajectories" / "step_000001").glob("*.npz"))) > len(stopped))
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=1800)
    assert f"continues {folder}" in output
    before = stored(folder, 1)
    assert stopped.keys() < before.keys()

    done = run([sys.executable, "-m", "src.train", f"resume={folder}"], WANDB_API_KEY="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["global_step"] for row in read_lines(folder / "metrics.jsonl")] == [0, 1, 2]
    assert batches(folder) == batches(whole_run)[:2]
    graded = [record["trial"] for record in read_lines(folder / "ledger.jsonl") if record.get("fate") == "graded"]
    assert all(graded.count(name) == 1 for name in before), "no finished trial was run again"
    after = stored(folder, 1)
    assert {name: after[name]["finished_at"] for name in before} == {n: r["finished_at"] for n, r in before.items()}
    assert {name: after[name]["finished_at"] for name in stopped} == {n: r["finished_at"] for n, r in stopped.items()}
    assert containers(folder) == []
    whole_in_wandb(folder)
    again = called(arguments)
    assert again.returncode == 0 and "is complete" in again.stdout, again.stdout + again.stderr


def whole_in_wandb(folder: Path) -> None:
    """Every row of metrics.jsonl is in the offline files of the run's processes."""
    assert len(list(folder.glob("wandb/offline-run-*"))) == 3
    sent = synced(folder).rows
    by_step = {row["global_step"]: row for row in sent}  # wandb merges a row that comes twice
    assert sorted(by_step) == [0, 1, 2] and len(sent) <= 4, "a kill -9 may send the last row again"
    for logged in read_lines(folder / "metrics.jsonl"):
        row = by_step[logged["global_step"]]
        assert {name: row[name] for name in logged} == pytest.approx(logged, nan_ok=True), "every metric of every group"
        assert row["_step"] == row["global_step"], "wandb's own step is the same"
        assert (TRAINING in row) == ("group/count" in row) and (EVALUATION in row) == ("eval/tasks" in row)


@pytest.mark.nightly
def test_a_second_signal_leaves_at_once_and_the_next_run_cleans_up(server_url: str, docker_ready: str, tmp_path: Path):
    """Trials are let end, and would not for ten minutes: their verifiers sleep."""
    for name in ("count-1", "count-2"):
        shutil.copytree(ROOT / TASKS / name, tmp_path / "tasks" / name)
        (tmp_path / "tasks" / name / "tests" / "test.sh").write_text("#!/bin/bash\nsleep 600\n")
        toml = tmp_path / "tasks" / name / "task.toml"
        toml.write_text(toml.read_text().replace("[verifier]\ntimeout_sec = 60.0", "[verifier]\ntimeout_sec = 600.0"))
    tasks = (f"tasks_dir={tmp_path / 'tasks'}", "eval_tasks=", "allow_family_overlap=false")
    process = start(command(server_url, tmp_path, *tasks, "run_name=left", "max_trials=2"))
    assert process.stdout is not None
    limit = threading.Timer(1800, process.kill)
    limit.start()
    assert any("max_trials=2 were started: running trials may finish" in line for line in process.stdout)
    limit.cancel()
    until(process, lambda: containers(tmp_path / "left"))
    until(process, lambda: process.send_signal(signal.SIGTERM), over=True)
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert (
        f"stopped immediately; finished trials are saved, resume with: python -m src.train resume={tmp_path}" in output
    )
    tidy()  # as every run does before it starts: another process's may have come first
    assert containers(tmp_path / "left") == []
    kinds = {record["event"] for record in read_lines(tmp_path / "left" / "ledger.jsonl")}
    assert kinds == {"started"}


def test_server_with_another_model(server_url: str, docker_ready: str, tmp_path: Path):
    told = refused(command(server_url, tmp_path, f"model_name={ROOT / MODEL}"))
    assert f"model_name={ROOT / MODEL}" in told and str(MODEL) in told


def test_rank_beyond_the_servers_leaves_no_run_directory(server_url: str, docker_ready: str, tmp_path: Path):
    told = refused(command(server_url, tmp_path, "lora_rank=64"))
    assert "lora_rank" in told and "at most 16" in told
    assert list(tmp_path.iterdir()) == []


def test_unwritable_logs_dir(server_url: str, docker_ready: str, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "logs_dir=" in refused(command(server_url, tmp_path / "file"))


def test_resume_with_another_model(whole_run: Path):
    told = refused([sys.executable, "-m", "src.train", f"resume={whole_run}", "model_name=Qwen/Qwen3-4B"])
    assert "model_name=Qwen/Qwen3-4B" in told and str(MODEL) in told
