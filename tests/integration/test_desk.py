"""The tools' quickstart on the real server: steps of examples/desk, and a batch whose user's endpoint goes away."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.trajectories import read_batch
from harbortrainer.tasks.sources import find_sources, load_sources
from tests.conftest import live_server
from tests.support.desk_runs import MODEL, SERVER, run_desk, run_with_outage

N_TRIALS = 24  # of a batch: one wave


@pytest.fixture(scope="module")
def desk_url(server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the desk's policy."""
    with live_server(MODEL, tmp_path_factory.mktemp("desk"), **SERVER) as url:
        yield url


@pytest.mark.nightly
async def test_two_steps_train_on_the_sampled_calls_without_docker(desk_url: str, tmp_path: Path) -> None:
    """Twelve held-out tasks, one of each share: the data set's whole side takes three times as long."""
    held = [task.name for task in load_sources(find_sources("tau:examples/desk")) if task.side == "test"][::3]
    words = ("max_steps=2", f"eval_tasks={','.join(held)}", "eval_group_size=1", "eval_every=2")
    run = await run_desk(desk_url, tmp_path, "run", *words, trials=N_TRIALS)
    rows = read_lines(run.metrics)
    steps = [row for row in rows if row.get("optim/steps")]
    held_out = [row for row in rows if "eval/reward_mean" in row]
    assert len(steps) == 2 and len(held_out) == 2
    for row in steps:
        assert row["train/tokens_per_unique_token"] == 1.0 and row["logprobs/max_abs_difference"] < 1e-3
    for row in held_out:
        assert row["eval/tasks"] == 12 and row["eval/reward_floor"] == pytest.approx(1 / 12)
        assert 0 < row["eval/reward_mean"] < 0.8
    batch = read_batch(run.path / "trajectories" / "step_000000")
    assert len(batch) == N_TRIALS and len({trial.task_name for trial in batch.values()}) == 8
    assert sum(trial.stats["tool_calls"] for trial in batch.values()) > N_TRIALS, (
        "every trial finds orders, most do more"
    )
    assert sum(trial.stats["parse_failures"] for trial in batch.values()) < N_TRIALS / 4
    assert all(trial.reward is not None for trial in batch.values())


@pytest.mark.nightly
async def test_a_batch_whose_users_endpoint_goes_away_is_graded_whole(desk_url: str, tmp_path: Path) -> None:
    outage = await run_with_outage(desk_url, tmp_path, trials=N_TRIALS)
    assert outage.seconds > 0
    assert (outage.trials, outage.graded, outage.zeros, outage.trained) == (N_TRIALS, N_TRIALS, 0, 1)
