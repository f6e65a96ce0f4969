"""`harbortrainer watch`: the page's server follows runs, survives half-written files, and reads nothing else."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.report import live
from harbortrainer.report.arguments import WatchArgs
from harbortrainer.report.live import Feed, application
from harbortrainer.report.panel import read_inside
from harbortrainer.report.write import write_report
from tests.conftest import ROOT
from tests.support.made_run import MadeRun
from tests.support.recorded_run import recorded_run
from tests.support.report_parts import blobs
from tests.support.report_walk import Walk

NAME = "s000000-p00-g00"


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    made = MadeRun(tmp_path / "run", tasks=2, group=2, turns=2)
    made.train(0)
    return made


def client(*runs: Path) -> TestClient:
    """The runs are read at each request."""
    return TestClient(application(Feed(runs, rest=0), "run"), base_url="http://127.0.0.1")


@pytest.fixture
def served(made: MadeRun) -> Iterator[TestClient]:
    with client(made.path) as served:
        yield served


def test_the_page_holds_no_run_and_may_ask_its_server_alone(served: TestClient) -> None:
    text = served.get("/").text
    assert "connect-src 'self'" in text and "default-src 'none'" in text and blobs_of(text) == {}


def blobs_of(text: str) -> dict[str, str]:
    return {line: line for line in text.splitlines() if line.startswith('<script type="text/plain"')}


def test_what_it_serves_is_what_the_report_has(served: TestClient, made: MadeRun) -> None:
    told = served.get("/data").json()
    report = blobs(write_report(made.path))["data"]
    for part in ("metrics", "trials", "funnel", "config", "timelines"):
        assert told["runs"][0][part] == report["runs"][0][part], part
    assert told["about"] == report["about"]


def test_a_trial_is_shown_in_full_with_the_time_of_each_screen(served: TestClient, made: MadeRun) -> None:
    shown = served.get("/panel/0/0").json()
    assert [message["at"] for message in shown["messages"]] == [0, 2.5, 5]
    assert shown["row"]["name"] == NAME and shown["row"]["outcome"] == "completed"
    assert served.get("/panel/0/99").status_code == served.get("/panel/1/0").status_code == 404


def test_a_run_that_goes_on_is_sent_again_and_only_then(served: TestClient, made: MadeRun) -> None:
    first = served.get("/data")
    again = {"If-None-Match": first.headers["ETag"]}
    assert served.get("/data", headers=again).status_code == 304
    made.train(1)
    second = served.get("/data", headers=again)
    assert second.status_code == 200 and second.json()["runs"][0]["metrics"]["steps"] == [1, 2]
    assert len(second.json()["runs"][0]["trials"]["name"]) == 8
    made.train(2)
    assert served.get("/panel/0/11").json()["row"]["outcome"] == "completed", "also while only a trial is looked at"


def test_half_written_files_break_nothing(served: TestClient, made: MadeRun) -> None:
    with (made.path / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"event": "started", "tri')
    assert len(served.get("/data").json()["runs"][0]["trials"]["name"]) == 4
    with (made.path / "ledger.jsonl").open("a") as ledger:
        ledger.write('al": "\n')  # a line that no run writes
    (made.path / "config.json").write_text("{")
    assert len(served.get("/data").json()["runs"][0]["trials"]["name"]) == 4, "the page stays as it was"
    trajectory = made.path / "rollouts" / "step_000000" / NAME / "agent" / "trajectory.json"
    trajectory.write_bytes(trajectory.read_bytes()[:-40])
    (made.path / "trajectories" / "step_000000" / f"{NAME}.npz").write_bytes(b"PK")
    shown = served.get("/panel/0/0")
    assert shown.status_code == 200 and shown.json()["messages"] == [] and shown.json()["notes"]


def test_two_runs_stand_side_by_side(made: MadeRun, tmp_path: Path) -> None:
    other = MadeRun(tmp_path / "other", tasks=1, group=2, turns=1)
    other.train(0)
    with client(made.path, other.path) as served:
        assert [run["name"] for run in served.get("/data").json()["runs"]] == ["run", "other"]
        assert served.get("/panel/1/1").json()["row"]["name"] == "s000000-p00-g01"


def test_no_file_outside_a_trials_folder_is_read(served: TestClient, made: MadeRun, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    folder = made.path / "rollouts" / "step_000000" / NAME
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(made.path)
    (folder / "own").symlink_to(folder / "result.json")
    os.mkfifo(folder / "pipe")
    url = f"/runs/0/rollouts/step_000000/{NAME}/"
    assert served.get(f"{url}result.json").status_code == served.get(f"{url}own").status_code == 200
    ways = ("link", "up/config.json", "pipe", "..%2f..%2f..%2fconfig.json", "%2e%2e/result.json", f"%2f{secret}")
    ways += ("a%00b", str(secret), "agent")
    assert {way: served.get(f"{url}{way}").status_code for way in ways} == dict.fromkeys(ways, 404)
    assert served.get("/runs/0/rollouts/step_000000/%2e%2e/config.json").status_code == 404
    assert served.get("/runs/0/rollouts/..%2f../x/config.json").status_code == 404
    assert "result.json" in served.get(url).text.splitlines()


def test_a_link_in_place_of_the_verifiers_output_is_not_followed(made: MadeRun, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    output = made.path / "rollouts" / "step_000000" / NAME / "verifier" / "test-stdout.txt"
    output.unlink()
    output.symlink_to(tmp_path / "secret")
    assert "a secret" not in json.dumps(blobs(write_report(made.path)))
    assert read_inside(output.parent, output) is None


def test_what_a_trial_wrote_is_never_markup(served: TestClient, made: MadeRun) -> None:
    (made.path / "rollouts" / "step_000000" / NAME / "evil.html").write_text("<script>alert(1)</script>")
    head = served.get(f"/runs/0/rollouts/step_000000/{NAME}/evil.html").headers
    assert head["content-type"].startswith("text/plain") and head["x-content-type-options"] == "nosniff"


def test_another_name_of_this_machine_is_refused(served: TestClient) -> None:
    assert served.get("/data", headers={"Host": "evil.example"}).status_code == 400


async def test_a_port_in_use_and_a_folder_without_a_run_are_one_line(made: MadeRun, tmp_path: Path) -> None:
    with contextlib.closing(live.socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port={port}: .*; give another one"):
            await live.watch(WatchArgs(run_dir=(str(made.path),), port=port))
    with pytest.raises(UserError, match="none"):
        await live.watch(WatchArgs(run_dir=(str(tmp_path / "none"),), port=0))


def test_the_terminal_of_a_trial_is_drawn(made: MadeRun, walked: Walk) -> None:
    text = walked(write_report(made.path))["trials"][0]["text"]
    assert "▶ play" in text and "after turn 2 of 2" in text


async def test_a_whole_run_is_followed_from_its_first_trial_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    seen: list[dict[str, Any]] = []
    over = threading.Event()

    def look() -> None:
        run = tmp_path / "run"
        while not (run / "ledger.jsonl").exists() and not over.wait(0.001):
            pass
        with client(run) as served:
            while not over.wait(0.1):
                seen.append(served.get("/data").json()["runs"][0])
            seen.append(served.get("/data").json()["runs"][0])

    thread = threading.Thread(target=look)
    thread.start()
    words = ("backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", "batch_size=2", "group_size=2")
    own = (f"tasks_dir={ROOT / 'datasets' / 'quickstart'}", "max_steps=2", f"logs_dir={tmp_path}", "run_name=run")
    await recorded_run([*words, *own])
    over.set()
    thread.join()
    counts = [len(run["trials"]["name"]) for run in seen]
    assert counts == sorted(counts) and counts[-1] == len(
        [line for line in read_lines(tmp_path / "run" / "ledger.jsonl") if line.get("event") == "started"]
    )
    assert seen[-1]["metrics"]["steps"] == [1, 2]
