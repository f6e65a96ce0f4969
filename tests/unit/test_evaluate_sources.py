"""An evaluation takes its tasks from wherever training does, and its limits are the ones that it is told."""

import json
import subprocess
from pathlib import Path

from harbortrainer.durable.jsonl import append_line
from harbortrainer.evaluation import session
from harbortrainer.evaluation.arguments import parse
from harbortrainer.model_file import ModelFile, model_of
from tests.support.evaluations import TASKS, copy_tasks, make_run, recorder, result, run

__all__ = ["recorder", "run"]


def repository(folder: Path) -> str:
    """With tasks in its folder `tasks`; its address."""
    copy_tasks(folder / "tasks", *TASKS)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "tasks"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
        subprocess.run(["git", "-C", str(folder), *identity, *words], check=True)
    return f"git+file://{folder}#tasks"


def test_tasks_of_git_and_of_a_folder_chosen_by_globs(run, tmp_path, capsys):
    address = repository(tmp_path / "repo")
    local = copy_tasks(tmp_path / "local", "count-1", "rename-1")
    chosen = (f"tasks_dir={address},{local}", "tasks_include=count-*,rename-1", "tasks_exclude=tasks/count-2")
    assert run(*chosen) == 0
    (policy,) = result(tmp_path / "out")["policies"]
    assert [task["name"] for task in policy["per_task"]] == ["tasks/count-1", "local/count-1", "rename-1"]
    assert {name: part["tasks"] for name, part in policy["sets"].items()} == {"local": 2, "tasks": 1}
    first, second = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert (first["given"], len(first["version"]), second["version"]) == (address, 40, "")
    before = (tmp_path / "out" / "evaluation.json").read_bytes()
    assert run(*chosen) == 0 and (tmp_path / "out" / "evaluation.json").read_bytes() == before
    assert run(chosen[0]) == 0, "left out, fields are those that it was started with"
    assert run(*chosen[:2], "tasks_exclude=") == 2
    assert "tasks_exclude" in capsys.readouterr().err


def test_the_user_is_that_of_the_runs_last_process(tmp_path: Path) -> None:
    """The run was resumed with another address of its user, and an evaluation asked the first one."""
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "count-1"), 5)
    saved = {"model_name": "models/one", "user_model": "gpt", "user_url": "http://old/v1"}
    (folder / "config.json").write_text(json.dumps(saved))
    change = {"time": 1.0, "from_step": 3, "changes": {"user_url": {"before": "http://old/v1", "now": "http://new/v1"}}}
    (folder / "config_changes.jsonl").write_text(json.dumps(change) + "\n")
    config = session.make_plan(parse(["tasks_dir=tau:examples/desk", f"checkpoint={folder}"])).config
    assert model_of("user", config.user) == ModelFile("gpt", "http://new/v1")


def test_a_continued_evaluation_keeps_its_user(tmp_path: Path) -> None:
    """The run was resumed with another user in between: half of the trials would have talked to each."""
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "count-1"), 5)
    (folder / "config.json").write_text(
        json.dumps({"model_name": "models/one", "user_model": "gpt", "user_url": "http://u"})
    )
    args = parse(["tasks_dir=tau:examples/desk", f"checkpoint={folder}", f"out={tmp_path / 'out'}"])
    session._directory(session.make_plan(args))

    def continued(**now: str) -> ModelFile | None:
        changes = {name: {"before": "?", "now": value} for name, value in now.items()}
        append_line(folder / "config_changes.jsonl", {"time": 1.0, "from_step": 3, "changes": changes})
        return model_of("user", session.make_plan(parse([f"out={tmp_path / 'out'}"])).config.user)

    assert continued(user_url="http://moved") == ModelFile("gpt", "http://moved")
    assert continued(user_model="other", user_url="http://another") == ModelFile("gpt", "http://u")
