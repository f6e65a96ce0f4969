import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbortrainer.budget.budget import Budget
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, TrajectoryGroup
from harbortrainer.run.checkpoints import CheckpointLog, Keep, PolicyIdentity, check_identity
from harbortrainer.run.directory import RunDirectory, base_model, held, new_run_directory, run_ids
from harbortrainer.run.metrics import MetricsLog, batch_metrics, eval_metrics
from harbortrainer.run.trajectories import read_batch, read_trajectory, write_trajectory
from harbortrainer.sft.dataset import Dataset, check_same
from harbortrainer.tasks.split import check_split
from harbortrainer.tasks.task import Task
from harbortrainer.train import parse
from harbortrainer.training.plan import installed_versions
from harbortrainer.training.rows import StepRows
from harbortrainer.training.start import find_start
from harbortrainer.watch.display import Display
from tests.conftest import ROOT
from tests.support.made_trials import trajectory

pytestmark = pytest.mark.disk
HOLDER = """
import pathlib, sys
from harbortrainer.run.directory import RunDirectory, held

with held(RunDirectory(pathlib.Path({path!r}))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_trajectory_file_returns_what_was_written(tmp_path):
    original = trajectory(times={"total": 2.0}, stats={"parse_failures": 1.0}, detail="x", attempt=2)
    path = write_trajectory(tmp_path, original)
    assert read_trajectory(path) == original
    assert read_batch(tmp_path) == {original.trial_name: original}


def test_metrics_steps_only_grow_and_rows_stay_when_a_run_goes_on(tmp_path):
    run = RunDirectory(tmp_path)
    log = MetricsLog(run)
    for step in range(4):
        log.log(step, {"reward/mean": step / 4})
    with pytest.raises(ValueError, match="logged already"):
        log.log(3, {})
    again = MetricsLog(run)
    assert again.last_step == 3
    again.log(4, {"reward/mean": 9.0})
    assert [row["global_step"] for row in read_lines(run.metrics)] == [0, 1, 2, 3, 4]


POLICY = PolicyIdentity("m", 8, "chat_template:1", "off")


async def test_old_checkpoints_are_deleted_after_the_new_one_is_recorded(tmp_path):
    deleted: list[str] = []

    async def delete(path: str) -> None:
        assert path not in (tmp_path / "c.jsonl").read_text()
        deleted.append(path)

    log = CheckpointLog(tmp_path / "c.jsonl", Keep(2))
    for step in range(4):
        await log.add(POLICY.checkpoint(step, f"tinker://m/weights/{step}"), delete)
    assert deleted == ["tinker://m/weights/0", "tinker://m/weights/1"]
    again = CheckpointLog(tmp_path / "c.jsonl", Keep(2))
    assert [c.step for c in again.records] == [2, 3]
    check_identity(again.records[-1], POLICY, "resume=run", "start a new run")
    for changes, words in (
        ({"model_name": "other"}, "model_name=other.*trained from m"),
        ({"thinking": "on"}, "enable_thinking: .*thinking off, and this run has on; .* or start a new run"),
        ({"renderer": "chat_template:2"}, "another chat template .*chat_template:1, now chat_template:2"),
    ):
        with pytest.raises(UserError, match=words):
            check_identity(again.records[-1], replace(POLICY, **changes), "resume=run", "start a new run")


def test_unwritable_logs_dir_names_the_field(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="logs_dir="):
        new_run_directory(str(tmp_path / "file"), "r", "label", {})


def test_a_run_is_held_by_one_process(tmp_path):
    run = new_run_directory(str(tmp_path), "r", "label", {"config.json": {}})
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(path=str(run.path))],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} is running it"), held(run):
        pass
    holder.kill()
    holder.communicate()
    with held(run), pytest.raises(UserError, match=f"process {os.getpid()} "), held(run):
        pass
    with held(run):
        pass


def test_a_new_run_appears_with_its_files_or_not_at_all(tmp_path):
    with pytest.raises(TypeError):
        new_run_directory(str(tmp_path), "r", "label", {"config.json": {}, "versions.json": object()})
    assert list(tmp_path.iterdir()) == []
    run = new_run_directory(str(tmp_path), "r", "label", {"config.json": {"a": 1}})
    assert [path.name for path in tmp_path.iterdir()] == ["r"] and json.loads(run.config.read_text()) == {"a": 1}


def test_a_package_that_is_not_installed_has_no_version(tmp_path, monkeypatch):
    for name in ("tinker", "harbor", "chz", "transformers", "numpy", "docker"):
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert "wandb" not in installed_versions() and installed_versions()["tinker"] == "1.2"
    assert installed_versions([Task("t", tmp_path, "")])["docker"] == "1.2"


def test_a_run_in_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    run = RunDirectory(tmp_path)
    run.lock.mkdir()
    with pytest.raises(UserError, match=rf"^resume={tmp_path}: run\.lock cannot be written \(Is a directory\); "):
        held(run).__enter__()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    runs = [new_run_directory(str(tmp_path), None, "m", {"config.json": {"n": n}}) for n in range(9)]
    assert all(re.fullmatch(r"m-\d{8}-\d{6}(-.+)?", run.name) for run in runs)
    assert [json.loads(run.config.read_text())["n"] for run in runs] == [*range(9)]


def test_a_folder_that_appears_at_the_last_moment_stays(tmp_path, monkeypatch):
    rename = Path.rename

    def late(path, target):
        if not target.exists():
            target.mkdir()
            (target / "other").touch()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(UserError, match=r"run_name=a: .* exists"):
        new_run_directory(str(tmp_path), "a", "m", {})
    assert [one.name for one in tmp_path.iterdir()] == ["a"] and (tmp_path / "a" / "other").exists()


def test_run_name_that_exists_says_how_to_resume(tmp_path):
    run = new_run_directory(str(tmp_path), "r", "label", {"config.json": {}})
    with pytest.raises(UserError, match="resume="):
        new_run_directory(str(tmp_path), "r", "label", {"config.json": {}})
    assert run.batch("step", 12).name == "step_000012"


def test_a_batch_and_an_evaluation_without_a_grade_have_no_reward(capsys):
    empty = TrajectoryGroup("t", (), (trajectory(reward=None, turns=()),))
    for groups_P in ([], [empty]):
        row = eval_metrics(groups_P)
        assert not [name for name in row if name.startswith("eval/reward")]
        assert (row["eval/tasks"], row["eval/trials_ungraded"]) == (0, len(groups_P))
        assert "eval/parse_failure_rate" not in row
        counted = batch_metrics(groups_P)
        means = {"group/constant_fraction", "rollout/infrastructure_failure_rate"} if groups_P else set()
        kinds = ("mean", "std", "fraction", "rate", "group", "trial")
        assert {name for name in counted if name.endswith(kinds)} == means
        assert (counted["group/count"], counted["group/trials_lost"]) == (len(groups_P), len(groups_P))
    Display().evaluation(3, eval_metrics([empty]))
    assert "held-out after step 3: reward unknown (0 tasks, 0 trials)  ungraded 1" in capsys.readouterr().out
    Display().step(3, 9, batch_metrics([empty]) | {"time/sample": 1.0, "time/update": 0.0})
    line = "step 3/9  reward unknown  groups with signal 0/1  trials 1  lost 1  turns unknown  sample 1.0s"
    assert line in capsys.readouterr().out


def test_metrics_of_a_batch():
    good, bad = trajectory(reward=1.0), trajectory(name="b", reward=0.0, stats={"parse_failures": 3.0})
    lost = trajectory(name="c", reward=None, outcome=Outcome.INFRASTRUCTURE_ERROR, attempt=2)
    metrics = batch_metrics([TrajectoryGroup("t", (good, bad), (lost,)), TrajectoryGroup("u", (good, good))])
    assert metrics["reward/mean"] == 0.75
    assert metrics["reward/best_of_group"] == 1.0
    assert metrics["group/constant_fraction"] == 0.5
    assert metrics["outcome/infrastructure_error"] == 1.0
    assert metrics["rollout/infrastructure_failure_rate"] == pytest.approx(0.2)
    assert metrics["turn/per_trial"] == 3.0
    assert metrics["turn/parse_failure_rate"] == 0.25


def test_no_damaged_byte_of_a_trajectory_file_goes_unseen(tmp_path):
    """Whatever byte is flipped, wherever the file is cut: refused by name, or read as it was written."""
    original = trajectory()
    path = write_trajectory(tmp_path, original)
    whole = path.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 3)]
    refused = 0
    for content in [*damaged, *(whole[:at] for at in range(0, len(whole), 50))]:
        path.write_bytes(content)
        try:
            assert read_trajectory(path) == original
        except UserError as error:
            assert str(path) in str(error) and "delete it and its trial runs again" in str(error)
            refused += 1
    assert refused > len(damaged) / 2


def test_a_trajectory_under_another_name_or_of_another_format_is_refused(tmp_path):
    path = write_trajectory(tmp_path, trajectory())
    with pytest.raises(UserError, match="it is that of s000000-p00-g00"):
        read_trajectory(path.rename(tmp_path / "s000000-p00-g01.npz"))
    path = write_trajectory(tmp_path, trajectory())
    arrays = dict(np.load(path))
    later = json.loads(str(arrays["meta"])) | {"format": 2}
    np.savez(path, allow_pickle=False, **arrays | {"meta": np.array(json.dumps(later))})
    with pytest.raises(UserError, match="format 2, this program reads 1"):
        read_trajectory(path)


def test_two_runs_of_one_name_have_ids_of_their_own_and_each_keeps_its_own(tmp_path):
    one, other = (new_run_directory(str(tmp_path / folder), "spot", "label", {"config.json": {}}) for folder in "ab")
    assert one.name == other.name and run_ids(one).run_id != run_ids(other).run_id
    assert run_ids(one) == run_ids(one) and re.fullmatch("[0-9a-f]{12}", run_ids(one).run_id)
    assert run_ids(one).wandb_id == run_ids(one).run_id == read_json(one.path / "run.json")["run_id"]


def test_a_folder_of_an_earlier_version_gets_a_run_id_and_keeps_its_id_at_wandb(tmp_path):
    name = "n" * 70
    for folder, wandb in (("with", True), ("without", False)):
        run = RunDirectory(tmp_path / folder / name)
        run.path.mkdir(parents=True)
        if wandb:
            (run.path / "wandb").mkdir()
        ids = run_ids(run)
        assert ids.run_id != name and ids.wandb_id == (name[:64] if wandb else ids.run_id)
        (run.path / "wandb").mkdir(exist_ok=True)
        assert run_ids(run) == ids, "noted once"


READERS: dict[str, Callable[[RunDirectory], Any]] = {
    "config.json": lambda run: parse([f"resume={run.path}"]),
    "run.json": run_ids,
    "plan.json": base_model,
    "split.json": lambda run: check_split(run.path, [], []),
    "effective.json": lambda run: find_start(None, PolicyIdentity("m", 8, "r", "off"), "tinker", run),
    "pending_row.json": lambda run: StepRows(run, MetricsLog(run), Budget()).kept(3),
    "conversations.json": lambda run: check_same(run, Dataset([], [], ())),
}


@pytest.mark.parametrize("text", ['["a"]', '"text"', "3", "null", "[" * 100_000, "{"])
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_holds_something_else_is_damaged_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    run = RunDirectory(tmp_path)
    write_json(run.config, {})
    (run.path / name).write_text(text)
    with pytest.raises(UserError) as error:
        READERS[name](run)
    message = str(error.value)
    assert message.startswith(f"resume={tmp_path}: {name} is damaged (") and "\n" not in message
    assert message.endswith("restore it or start a new run")
