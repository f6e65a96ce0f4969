"""Venue tau as a whole: every gold conversation through the run's machinery, and a mixed run on a real server."""

from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.trajectories import read_batch
from harbortrainer.tasks.sources import find_sources, load_sources
from tests.conftest import MODEL
from tests.support.served_run import served_run
from tests.support.tau_parts import gold_groups, needs_tau2
from tests.support.tau_users import gold_of_telecom
from tests.support.tiers import first

pytestmark = needs_tau2


@pytest.mark.parametrize("every", first(1, [12, 1]))
async def test_gold_of_retail_and_airline_tasks_earns_1(tmp_path: Path, every: int) -> None:
    tasks = load_sources(find_sources("tau:retail,tau:airline"))[::every]
    assert len(tasks) == -(-164 // every)
    groups = await gold_groups(tasks, tmp_path)
    assert [group.rewards_G for group in groups] == [(1.0,)] * len(tasks)
    assert (
        len(read_batch(tmp_path / "kept")) == len(list((tmp_path / "trials").glob("*/conversation.json"))) == len(tasks)
    )


@pytest.mark.nightly
async def test_gold_of_all_114_telecom_tasks_earns_1_with_users_that_call_tools_over_http(tmp_path: Path) -> None:
    tasks = load_sources(find_sources("tau:telecom"))
    assert [await gold_of_telecom(task, tmp_path / task.name) for task in tasks] == [1.0] * 114


@pytest.mark.nightly
async def test_a_mixed_run_of_a_conversation_and_a_terminal_task(server_url: str, tmp_path: Path) -> None:
    """One step: a conversation's first prompt alone has 2,300 tokens here, which take a CPU long."""
    words = (
        f"backend=skyrl-tx skyrl_tx_url={server_url} model_name={MODEL} tasks_dir=tau:mock,datasets/quickstart "
        "tasks_include=mock-create_task_1,count-1 tool_format=hermes lora_rank=8 batch_size=2 group_size=2 "
        f"max_tokens=16 context_limit=4096 max_turns=1 max_steps=1 logs_dir={tmp_path} run_name=run"
    ).split()
    run = await served_run(words)
    (row,) = [row for row in read_lines(run / "metrics.jsonl") if row.get("optim/steps")]
    assert row["group/count/source/mock"] == row["group/count/source/quickstart"] == 1.0
    batch = read_batch(run / "trajectories" / "step_000000")
    talks = [trial for trial in batch.values() if trial.task_name == "mock-create_task_1"]
    assert len(batch) == 4 and len(talks) == 2
    assert all("tool_calls" in trial.stats and trial.reward is not None for trial in talks)
    folder = run / "rollouts" / "step_000000"
    assert {path.parent.name for path in folder.glob("*/conversation.json")} == {trial.trial_name for trial in talks}
