"""The whole loop on fakes: order of calls, what is logged, what a resumed run does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.training.references import DRIFT_SEQUENCES, References
from tests.support.fake_loop import Run


class FakeReference:
    """Gives each sampled token `nats` less than the policy does."""

    def __init__(self, nats: float = 0.0) -> None:
        self.nats = nats
        self.scored: list[list[str]] = []

    async def logprobs(self, sequences_D: Sequence[TrainingSequence]) -> list[np.ndarray]:
        self.scored.append([s.trial_name for s in sequences_D])
        return [s.logprobs_T - self.nats for s in sequences_D]


async def test_a_step_samples_what_was_just_published_and_trains_when_nothing_is_under_way(tmp_path):
    run = Run(tmp_path, max_steps=2)
    await run.trainer.run()
    assert run.calls == [
        "drain", "publish 0", "save 0", "sample eval 0",
        "sample step 0", "drain", "update", "drain", "publish 1",
        "sample step 1", "drain", "update", "drain", "publish 2", "sample eval 2", "save 2",
    ]  # fmt: skip


async def test_num_substeps_are_real_optimizer_steps(tmp_path):
    run = Run(tmp_path, num_substeps=2, max_steps=1, lr_schedule="linear", learning_rate=1.0)
    await run.trainer.run()
    assert run.policy.rates == [1.0, 0.5]
    assert sorted(name for batch in run.policy.batches for name in batch) == [
        "s000000-p00-g00", "s000000-p00-g01", "s000000-p01-g00", "s000000-p01-g01",
    ]  # fmt: skip
    assert run.rows[-1]["optim/steps"] == 2


async def test_batch_without_signal_takes_no_step_and_publishes_nothing_new(tmp_path):
    run = Run(tmp_path, rollouts={"constant": True}, max_steps=1, held_out=0)
    await run.trainer.run()
    assert "update" not in run.calls and "publish 1" not in run.calls
    assert run.rows[-1]["train/skipped_batch"] == 1


def references(**penalties: Any) -> References:
    """`start`: what kl/start is measured against; the others: by kl_reference."""
    start: Any = penalties.get("start")
    return References(start, penalties)


async def test_each_step_compares_some_trials_with_the_start_and_counts_their_tokens(tmp_path):
    start = FakeReference(0.25)
    run = Run(tmp_path, references=references(start=start), group_size=6, max_steps=1)
    await run.trainer.run()
    assert run.rows[-1]["kl/start"] == pytest.approx(0.25)
    ((*names,),) = start.scored
    assert len(names) == DRIFT_SEQUENCES and names == sorted(set(names)), "8 of 12, in order"
    (record,) = (r for r in read_lines(run.directory.ledger) if r["event"] == "trained")
    scored = dict(zip(record["trials"], record["scored"], strict=True))
    assert {name for name, tokens in scored.items() if tokens} == set(names) and sum(scored.values()) == 8 * 4


async def test_a_fresh_adapters_start_is_the_base_model_and_both_are_reported(tmp_path):
    base = FakeReference(0.5)
    run = Run(tmp_path, references=References(base, {"base": base}), max_steps=1, kl_penalty_coef=0.1)  # type: ignore[arg-type]
    await run.trainer.run()
    assert [len(names) for names in base.scored] == [4]
    assert run.rows[-1]["kl/start"] == run.rows[-1]["kl/base"] == pytest.approx(0.5)


async def test_a_teacher_is_reported_beside_the_start(tmp_path):
    start, teacher = FakeReference(0.5), FakeReference(2.0)
    given = references(start=start, **{"runs/a@3": teacher})
    run = Run(tmp_path, references=given, max_steps=1, kl_penalty_coef=0.1, kl_reference="runs/a@3")
    await run.trainer.run()
    row = run.rows[-1]
    assert row["kl/reference"] == pytest.approx(2.0) and row["kl/start"] == pytest.approx(0.5) and "kl/base" not in row
    (record,) = (r for r in read_lines(run.directory.ledger) if r["event"] == "trained")
    assert sum(record["scored"]) == 2 * sum(record["tokens"]), "by each of the two"
