"""wandb for real: its own program, offline and against a server that takes rows, fails, or says nothing."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.run.directory import RunDirectory, run_ids
from harbortrainer.watch.wandb_log import TRAINING
from tests.support.made_run import MadeRun
from tests.support.small_disk import small_disk
from tests.support.tiers import few
from tests.support.wandb_server import KEY, wandb_server

ROOT = Path(__file__).parents[2]
PATIENT, SHORT = 900, 2  # seconds: where an answer comes; where none does
TALK = [{"role": "user", "content": "the task"}, {"role": "assistant", "content": "ls"}]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of a run of four steps, with evaluations."""
    made = MadeRun(tmp_path_factory.mktemp("made") / "run", tasks=2, group=2, turns=2)
    return [{"global_step": step, **(made.evaluate() if not step else made.train(step - 1, True))} for step in range(5)]


def folder_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A run directory with what is kept of conversations and states."""
    (path / "conversations").mkdir(parents=True)
    (path / "config.json").write_text('{"seed": 1}')
    for step in range(len(rows)):
        talk = {"task": "t", "trial": f"n{step}", "reward": 1.0, "outcome": "completed", "messages": TALK}
        for batch in (f"step_{step:06d}", f"eval_{step:06d}"):
            (path / "conversations" / f"{batch}.jsonl").write_text(json.dumps(talk) + "\n")
    append_line(path / "checkpoints.jsonl", {"step": 0, "path": "tinker://m/weights/0"})
    return path


def start(run: Path, rows: list[dict[str, Any]], url: str, seconds: float, *how: str, **environment: str):
    """The process that logs `rows`."""
    file = run.parent / f"{run.name}-{len(rows)}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outer = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own = {"WANDB_BASE_URL": url, "HOME": str(run.parent), "NETRC": str(run.parent / "none")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.wandb_process", str(run), str(file), str(seconds), *how],
        cwd=ROOT, env=outer | own | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def output(process: subprocess.Popen[str]) -> list[str]:
    told, _ = process.communicate(timeout=1800)
    assert process.returncode in (0, -9), told
    return told.splitlines()


def wandb_id(run: Path) -> str:
    return run_ids(RunDirectory(run)).wandb_id


def logged(run: Path) -> list[int]:
    return [row["global_step"] for row in read_lines(run / "metrics.jsonl")]


def test_online_runs_of_one_name_lose_no_row_and_go_on_where_the_server_is(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    run, other = (folder_of(tmp_path / clone / "baseline", rows) for clone in ("one", "other"))
    with wandb_server() as server:
        begun = [start(one, rows[:n], server.url, PATIENT, WANDB_API_KEY=KEY) for one, n in ((run, 3), (other, 5))]
        told = [*map(output, begun), output(start(run, rows, server.url, PATIENT, WANDB_API_KEY=KEY))]
    for one, lines in zip((run, other, run), told, strict=True):
        assert lines == [f"wandb: {server.url}/e/p/runs/{wandb_id(one)}", "over"]
        logged_there = server.runs[wandb_id(one)]
        assert [row["global_step"] for row in logged_there] == [row["_step"] for row in logged_there] == list(range(5))
        assert "reward/mean" in logged_there[4] and TRAINING in logged_there[4]


FAILING = {  # its server, and what each run says of it
    "mute": ({"silent": ""}, f"wandb: no response after {SHORT} s; continuing without it"),
    "broken": ({"status": 500}, ""),
    "mute-at-the-end": ({"silent": "file_stream"}, ""),
    "key": ({"status": 401}, "returned error 401"),
    "unwritable": ({}, "Not a directory"),
}


@pytest.mark.parametrize("names", few(FAILING, 2))
def test_no_failure_of_wandb_stops_a_run(rows: list[dict[str, Any]], tmp_path: Path, names: list[str]) -> None:
    """A bad key, a broken server, one that never answers at the start or at the end, folders that cannot be written.

    Each is told in a line or two, and metrics.jsonl is whole.
    """
    with ExitStack() as open_:
        processes = {}
        for name in names:
            server = open_.enter_context(wandb_server(**FAILING[name][0]))
            run = folder_of(tmp_path / name / "run", rows)
            if name == "unwritable":
                (run / "wandb").write_text("a file where wandb's folder should be")
            patience = PATIENT if name in ("key", "unwritable") else SHORT
            processes[name] = start(run, rows, server.url, patience, WANDB_API_KEY=KEY)
        told = {name: output(process) for name, process in processes.items()}
    for name, lines in told.items():
        assert lines[-1] == "over" and all(line.startswith("wandb: ") for line in lines[:-1]), (name, lines)
        assert 2 <= len(lines) <= 4 and logged(tmp_path / name / "run") == list(range(5)), (name, lines)
        assert FAILING[name][1] in lines[0]
        if name not in ("key", "unwritable"):
            assert any("metrics.jsonl has every row" in line for line in lines), lines


@pytest.mark.nightly
def test_full_disk_under_wandbs_folder(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """metrics.jsonl lies elsewhere here: it is whole, whatever wandb could keep."""
    with small_disk(mib=1) as disk:
        run = folder_of(tmp_path / "run", rows)
        (run / "wandb").symlink_to(disk.folder)
        disk.fill()
        told = output(start(run, rows, "http://127.0.0.1:1", 20))
    assert told[-1] == "over" and len(told) <= 4 and not any("Traceback" in line for line in told), told
    assert logged(run) == list(range(5))
