"""A past run replayed: bit by bit what was sent."""

import asyncio
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.learning.observations import as_targets
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.replay.arguments import ReplayArgs
from harbortrainer.replay.replay import Journal, rebuild, replay
from harbortrainer.run.config_changes import to_json
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from harbortrainer.tasks.task import Task
from tests.support.fake_loop import FakePolicy, Run
from tests.support.tiers import first

SETTINGS: list[dict[str, Any]] = [
    {},
    {"loss_norm": "token_sum", "num_substeps": 3},
    {"loss_fn": "ppo", "clip_thresholds": (0.8, 3.0), "outcome_policy": {"max_turns": "mask", "agent_timeout": 0.5}},
    {"observation_loss_coef": 0.05, "remove_constant_reward_groups": True, "outcome_policy": {"max_turns": "mask"}},
    {"advantage": "leave_one_out"},
    {"normalize_advantages_by_std": True, "loss_norm": "sequence_mean"},
    {"remove_constant_reward_groups": True},
]


given = partial(ReplayArgs, run_dir="")


class KeepingPolicy(FakePolicy):
    knows_own_ratio = True

    def __init__(self, calls: list[str]) -> None:
        super().__init__(calls)
        self.sent: list[list[TrainingSequence]] = []

    async def update(self, sequences_D: Any, **settings: Any) -> Any:
        self.sent.append(list(sequences_D))
        return await super().update(sequences_D, **settings)


def trial(name: str, task: Task, member: int) -> Trajectory:
    """Every third place was lost once, some have two segments, rewards and outcomes vary; a function of the name."""
    dice = random.Random(name)
    turns = []
    for turn in range(dice.randint(1, 4)):
        n = dice.randint(1, 5)
        ids = tuple(dice.randrange(1000) for _ in range(n))
        turns.append(Turn(turn // 3, (7, 8, turn), ids, tuple(-dice.random() for _ in range(n)), 0, roles_T=b"\0\2\2"))
    outcome = dice.choice([Outcome.COMPLETED, Outcome.MAX_TURNS, Outcome.AGENT_TIMEOUT, Outcome.INFRASTRUCTURE_ERROR])
    reward = None if outcome is Outcome.INFRASTRUCTURE_ERROR else dice.choice([0.0, 1.0, 1.0, 1 / 3])
    name = f"{name}-a2" if member % 3 == 1 else name
    return Trajectory(task.name, name, tuple(turns), reward, outcome)


def ran(folder: Path, **settings: Any) -> Run:
    folder.mkdir()
    run = Run(folder, policy=KeepingPolicy, **{"batch_size": 3, "group_size": 4, "held_out": 0, **settings})
    run.rollouts._trial = trial  # pyright: ignore[reportAttributeAccessIssue]
    return finished(run)


def finished(run: Run) -> Run:
    run.directory.config.write_text(json.dumps(to_json(run.config)))
    asyncio.run(run.trainer.run())
    return run


def rebuilt(run: Run) -> list[tuple[Any, ...]]:
    """What every optimizer step of the run is sent, by its files."""
    journal = Journal(run.directory)
    parts = []
    for step in journal.records:
        parts += rebuild(journal.groups(step), journal.config(step), step)[1]
    return [bits(as_targets(part, None)) for part in parts]


def bits(part: Any) -> tuple[Any, ...]:
    return tuple(
        (s.trial_name, *(a.tobytes() for a in (s.tokens_T, s.mask_T, s.logprobs_T, s.advantages_T))) for s in part
    )


def sent(run: Run) -> list[tuple[Any, ...]]:
    policy: Any = run.policy
    return [bits(part) for part in policy.sent]


@pytest.mark.parametrize("settings", first(4, SETTINGS))
def test_with_unchanged_settings_the_datums_are_bit_by_bit_those_sent(tmp_path: Path, settings: Any) -> None:
    run = ran(tmp_path / "run", **settings)
    assert rebuilt(run) == sent(run) and len(sent(run)) >= 3
    report = replay(run.directory, given())
    assert report.rebuilt
    assert [step.step for step in report.steps] == [row["global_step"] for row in run.rows]
    assert [step.datums for step in report.steps] == [row["train/datums"] for row in run.rows]


def test_the_ledgers_digest_is_what_a_replay_is_held_against(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    records = [record for record in read_lines(run.directory.ledger) if record["event"] == "trained"]
    folder = run.directory.trajectories("step", 1)
    name = records[1]["trials"][0]
    stored = read_trajectory(folder / f"{name}.npz")
    first = replace(stored.turns[0], completion_tokens_T=(1234, *stored.turns[0].completion_tokens_T[1:]))
    write_trajectory(folder, replace(stored, turns=(first, *stored.turns[1:])))
    differences = [step.difference for step in replay(run.directory, given()).steps]
    assert [bool(d) for d in differences] == [step == 1 for step in range(len(records))]
    assert "tokens or logprobs" in differences[1]
    (folder / f"{name}.npz").unlink()
    (step,) = replay(run.directory, given(steps=(2,))).steps
    assert name in step.difference and step.step == 2
    assert main(["replay", str(run.directory.path)]) == 1


def test_steps_that_a_restored_state_undid_are_left_out(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    append_line(run.directory.ledger, {"event": "resumed", "step": 2}, checked=True)
    assert list(Journal(run.directory).records) == [0, 1]


def test_settings_that_changed_on_the_way_hold_for_their_steps(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    change = {"normalize_advantages_by_std": {"before": False, "now": True}}
    append_line(run.directory.config_changes, {"time": 0, "from_step": 1, "changes": change})
    differences = [step.difference for step in replay(run.directory, given()).steps]
    assert not differences[0] and differences[1] == "other advantages"


@pytest.mark.parametrize(
    ("argument", "words"),
    [("steps=9", "choose from 1 to"), ("advantage=none", "advantage: no such field")],
)
def test_refusals(tmp_path: Path, argument: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = ran(tmp_path / "run", n_epochs=1)
    assert main(["replay", str(run.directory.path), argument]) == 2
    assert words in capsys.readouterr().err


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ran(tmp_path / "run", n_epochs=1)
    assert main(["replay", str(run.directory.path), "json=-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rebuilt"] and len(report["steps"]) == len(run.rows)
    assert main(["replay", str(run.directory.path)]) == 0
    assert "rebuilt bit by bit" in capsys.readouterr().out


def test_no_run_is_a_plain_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 2 and main(["replay", str(tmp_path)]) == 2
    assert "give RUN_DIR" in (text := capsys.readouterr().err) and "config.json" in text
