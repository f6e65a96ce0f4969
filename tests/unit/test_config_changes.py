"""What a resumed run may change, from which step on it holds, and what is refused."""

from pathlib import Path

import pytest

from harbortrainer.config import Config
from harbortrainer.durable.files import write_json
from harbortrainer.errors import UserError
from harbortrainer.run.config_changes import ConfigHistory, note, to_json
from harbortrainer.run.directory import RunDirectory
from harbortrainer.tasks.task import Task
from harbortrainer.train import parse
from harbortrainer.training.schedule import SettingsByStep

BASE = ["model_name=m", "tasks_dir=."]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    write_json(directory.config, to_json(parse([*BASE, "eval_tasks=a,b", "learning_rate=0.5"])))
    return directory


@pytest.mark.parametrize("change", ["model_name=other", "seed=3", "group_size=2", "eval_tasks=a", "backend=skyrl-tx"])
def test_what_makes_another_run_is_refused_with_both_values(run: RunDirectory, change: str) -> None:
    name, value = change.split("=")
    with pytest.raises(UserError, match=name) as error:
        parse([f"resume={run.path}", change])
    assert value in str(error.value) and "was started with" in str(error.value) and "\n" not in str(error.value)


def test_changes_are_kept_for_the_next_process_and_hold_from_their_step_on(run: RunDirectory) -> None:
    first = ConfigHistory(run, Config)
    config = parse([f"resume={run.path}", "learning_rate=0.25", "n_parallel_envs=3", "n_epochs=2"])
    changes = first.changes(config)
    first.record(changes, from_step=4)
    assert {change.field for change in changes} == {"learning_rate", "n_parallel_envs", "n_epochs"}
    again = ConfigHistory(run, Config)
    assert again.changes(parse([f"resume={run.path}"])) == []
    tasks = [Task(f"t{i}", Path(), "") for i in range(16)]
    schedule = SettingsByStep(tasks, again.configs())
    assert [schedule.at(step).config.learning_rate for step in (0, 3, 4, 9)] == [0.5, 0.5, 0.25, 0.25]
    assert schedule.at(3).order.total_steps == 2 and schedule.total_steps == 4
    back = ConfigHistory(run, Config)
    back.record(back.changes(parse([f"resume={run.path}", "learning_rate=1.0"])), from_step=4)
    assert SettingsByStep(tasks, ConfigHistory(run, Config).configs()).at(4).config.learning_rate == 1.0, (
        "the later word counts"
    )


def test_a_run_from_before_names_made_families_keeps_its_split(run: RunDirectory) -> None:
    saved = to_json(parse([*BASE, "eval_split=0.1"]))
    del saved["family"]
    write_json(run.config, saved)
    assert parse([f"resume={run.path}"]).family == ""
    write_json(run.config, to_json(parse([*BASE, "eval_split=0.1"])))
    assert parse([f"resume={run.path}"]).family is None


KEYED = ["outcome_policy.max_turns=0.25", "outcome_policy.completed=mask", "task_weights.easy=2", "agent_kwargs.n=1"]


def test_the_same_command_with_keys_of_a_setting_continues_the_run(run: RunDirectory) -> None:
    write_json(run.config, to_json(parse([*BASE, *KEYED])))
    assert ConfigHistory(run, Config).changes(parse([f"resume={run.path}", *KEYED])) == []


def test_a_key_is_changed_or_added_and_the_others_stay(run: RunDirectory) -> None:
    added = parse([f"resume={run.path}", "environment_kwargs.pids_limit=99"])
    assert added.environment_kwargs == {"pids_limit": 99}, "the run was started without any"
    write_json(run.config, to_json(parse([*BASE, *KEYED])))
    changed = parse([f"resume={run.path}", "outcome_policy.max_turns=mask", "--outcome_policy.agent_timeout=train"])
    assert changed.outcome_policy == {"max_turns": "mask", "completed": "mask", "agent_timeout": "train"}
    with pytest.raises(UserError, match="task_weights"):
        parse([f"resume={run.path}", "task_weights.easy=3"])


def test_an_intervention_is_told_loudly_and_a_harmless_change_in_passing(run: RunDirectory) -> None:
    changes = ConfigHistory(run, Config).changes(parse([f"resume={run.path}", "learning_rate=0.25", "wandb_project=p"]))
    told = {change.field: note(change, 4) for change in changes}
    assert told["learning_rate"].startswith("CHANGED from step 5 on: learning_rate=0.25, was 0.5")
    assert told["wandb_project"] == "wandb_project=p, was None"


@pytest.mark.parametrize("other", ["run_name=other", "logs_dir=/elsewhere"])
def test_another_name_beside_resume_is_refused(run: RunDirectory, other: str) -> None:
    """It was ignored, and the run continued in its own folder."""
    with pytest.raises(UserError, match=f"^{other}: resume={run.path} continues"):
        parse([f"resume={run.path}", other])
    parse([f"resume={run.path}", f"run_name={run.name}", f"logs_dir={run.path.parent}"])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=r"run_name=data: .* is no run"):
        parse([*BASE, f"logs_dir={tmp_path}", "run_name=data"])


@pytest.mark.parametrize(("text", "why"), [("{", "damaged"), ('{"tasks_dir": "."}', r"damaged \(no model_name\)")])
def test_a_damaged_configuration_is_named(run: RunDirectory, text: str, why: str) -> None:
    run.config.write_text(text)
    with pytest.raises(UserError, match=rf"config\.json is {why}"):
        parse([f"resume={run.path}"])
