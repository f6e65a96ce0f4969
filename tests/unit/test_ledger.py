"""What became of every trial: durable lines, closed after a kill, counted once however often a step is repeated."""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.budget.account import Account
from harbortrainer.config import Config
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.errors import DiskFault, UserError
from harbortrainer.learning.batch import TrainingBatch, assemble
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName, Turn, group_trajectories
from harbortrainer.learning.treatment import UNFIT
from harbortrainer.report.trials import read_trials
from harbortrainer.run.ledger import Ledger, require_ledger, updates_that_count
from harbortrainer.run.trajectories import write_trajectory

NAMES = A, B, C, D = tuple(str(TrialName("step", 0, 0, member)) for member in range(4))
TURN = Turn(0, (1,), (2, 3), (-0.5, -0.5), 0)


def trajectory(name: str, reward: float | None = 1.0, task: str = "t") -> Trajectory:
    outcome = Outcome.COMPLETED if reward is not None else Outcome.INFRASTRUCTURE_ERROR
    times, stats = {"environment": 1.0, "agent": 2.0, "total": 3.0004}, {"judge_prompt_tokens": 5.0}
    cause = "" if reward is not None else "no disk"
    return Trajectory(task, name, (TURN,), reward, outcome, cause, times=times, stats=stats)


def batch(*rewards: float, **fields: Any) -> TrainingBatch:
    """Of trials A, B, ... of one group."""
    trials = [trajectory(name, reward) for name, reward in zip(NAMES, rewards, strict=False)]
    config = Config(model_name="m", tasks_dir=".", **fields)
    return assemble([group_trajectories("t", trials)], config)


def train(ledger: Ledger, step: int, made: TrainingBatch) -> None:
    ledger.trained(step, made, [[s.trial_name for s in made.sequences_D]] if made.sequences_D else [])


def run_trial(ledger: Ledger, name: str, fate: str = "graded", task: str = "t") -> None:
    ledger.started(name, task, 1)
    ledger.ended(trajectory(name, 1.0 if fate == "graded" else None, task), fate)


def test_a_clock_that_is_set_in_a_run_costs_no_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account()
    ledger = Ledger(tmp_path / "ledger.jsonl", account.count)
    ledger.started(A, "t", 1)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 3600)
    ledger.ended(trajectory(A), "graded")
    assert account.hours < 0.1


def test_a_trials_line_says_how_and_where_it_ended_and_what_it_cost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run_trial(ledger, A, f"replaced by {A}-a2")
    started, ended = read_lines(tmp_path / "ledger.jsonl")
    times = [started.pop("time"), ended.pop("time")]
    assert times == [round(time, 3) for time in times] and isinstance(times[0], float)
    assert started == {"event": "started", "trial": A, "task": "t", "attempt": 1, "conversation": True}
    assert ended == {
        "event": "ended", "trial": A, "task": "t", "attempt": 1, "outcome": "infrastructure_error", "cause": "no disk",
        "stage": "agent", "reward": None, "turns": 1, "prompt_tokens": 1, "sampled_tokens": 2, "seconds": 3.0,
        "fate": f"replaced by {A}-a2", "judge_prompt_tokens": 5,
    }  # fmt: skip


def test_both_lines_of_a_trial_name_its_agent_after_a_kill_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for name in (A, B, C):
        ledger.started(name, "t", 1, agent="codex")
    ledger.ended(trajectory(A), "graded")
    write_trajectory(tmp_path / "trajectories" / "step_000000", trajectory(B))
    Ledger(path)  # the first process was killed
    lines = list(read_lines(path))
    assert [line["event"] for line in lines] == ["started"] * 3 + ["ended"] * 3
    assert {line["agent"] for line in lines} == {"codex"}
    assert {row.agent for row in read_trials(lines)} == {"codex"}


def test_the_funnel_counts_each_trial_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name, fate in ((D, f"replaced by {D}-a2"), (A, "graded"), (B, "graded"), (C, "dropped")):
        run_trial(ledger, name, fate)
    assert ledger.summary() == "trials: 4 started, 4 finished, 2 graded, 0 trained (1 replaced, 1 dropped)"
    ledger.trained(0, batch(1.0, 0.0), [[A]])
    assert ledger.summary() == "trials: 4 started, 4 finished, 2 graded, 1 trained (1 masked, 1 replaced, 1 dropped)"
    assert read_lines(tmp_path / "ledger.jsonl")[-1]["too_far"] == [B]
    assert Ledger(tmp_path / "none.jsonl").summary() == "trials: 0 started, 0 finished, 0 graded, 0 trained"
    assert ledger.metrics()["funnel/replaced"] == 1.0
    assert Ledger(tmp_path / "ledger.jsonl").metrics() == ledger.metrics(), "an earlier process's are counted too"


def test_updates_that_are_made_again_count_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.steps_trained == 0
    for step in range(3):
        train(ledger, step, batch(1.0, 0.0))
    again = Ledger(tmp_path / "ledger.jsonl")
    again.resumed(1)  # the checkpoint was made after one batch
    assert (again.counts["trained"], again.steps_trained) == (2, 3), "what was undone was trained on, too"
    again.compose(0, [GroupSlot(0, 0)])
    train(again, 1, batch(1.0, 0.0))
    assert again.counts["trained"] == Ledger(tmp_path / "ledger.jsonl").counts["trained"] == 4
    records = list(read_lines(tmp_path / "ledger.jsonl"))
    assert updates_that_count(records) == {0: records[0], 1: records[-1]}
    assert updates_that_count(records[:-1]) == {0: records[0]}


def test_a_killed_process_leaves_no_trial_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    run_trial(ledger, A)
    ledger.started(f"{B}-a2", "t", 2)
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.counts["cancelled"] == 1 and again.counts["finished"] == 1
    last = read_lines(tmp_path / "ledger.jsonl")[-1]
    named = [last[key] for key in ("trial", "task", "attempt", "outcome", "cause", "stage", "seconds")]
    assert named == [f"{B}-a2", "t", 2, "cancelled", "the process was killed", "creation", 0.0]
    assert Ledger(tmp_path / "ledger.jsonl").counts["cancelled"] == 1


def test_a_trial_whose_file_was_written_when_the_process_was_killed_has_finished(tmp_path: Path) -> None:
    """Killed between the trajectory and the ledger's line: the trial counts, and is not run again."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name, reward in ((A, 0.5), (B, None), (C, None)):
        ledger.started(name, "t", 1)
        if name != C:
            write_trajectory(tmp_path / "trajectories" / "step_000003", trajectory(name, reward))
    again = Ledger(tmp_path / "ledger.jsonl")
    ended = {r["trial"]: (r["fate"], r["reward"]) for r in read_lines(tmp_path / "ledger.jsonl") if "fate" in r}
    assert ended == {A: ("graded", 0.5), B: ("dropped", None), C: ("cancelled", None)}
    assert again.counts["finished"] == 2


def test_the_time_until_the_next_process_is_not_the_trials(tmp_path: Path) -> None:
    """It was killed before the ledger's line, and continued a week later: containers and clocks stood still."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.started(A, "t", 1, agent="terminus-2")
    file = write_trajectory(tmp_path / "trajectories" / "step_000003", trajectory(A))
    (started,) = read_lines(tmp_path / "ledger.jsonl")
    week, account = 7 * 24 * 3600, Account()
    (tmp_path / "ledger.jsonl").unlink()
    append_line(tmp_path / "ledger.jsonl", started | {"time": started["time"] - week}, checked=True)
    os.utime(file, (0, started["time"] - week + 60))
    Ledger(tmp_path / "ledger.jsonl", account.count)
    assert account.total.container_sec == pytest.approx(60, abs=0.01)
    assert account.hours == pytest.approx(60 / 3600, abs=0.01)
    assert read_lines(tmp_path / "ledger.jsonl")[-1]["time"] == pytest.approx(started["time"] - week + 60, abs=0.01)


def test_a_steps_line_says_what_became_of_every_graded_trial(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    config = Config(model_name="m", tasks_dir=".", outcome_policy={"max_turns": "mask", "policy_error": -1})
    outcomes = {A: Outcome.COMPLETED, B: Outcome.MAX_TURNS, C: Outcome.POLICY_ERROR}
    trials = [replace(trajectory(name, 1.0), outcome=outcome) for name, outcome in outcomes.items()]
    alone = [trajectory("alone", 1.0), trajectory("lost", None)]
    made = assemble([group_trajectories("t", trials), group_trajectories("u", alone)], config)
    ledger.trained(0, made, [[C], [A]], {A: 7})
    train(ledger, 1, batch(1.0, 1.0))
    train(ledger, 2, batch(1.0, 0.0))
    first, second, third = read_lines(tmp_path / "ledger.jsonl")
    assert {key: value for key, value in first.items() if key not in ("time", "digest")} == {
        "event": "trained", "step": 0, "optimizer_steps": 2, "first_optimizer_step": 1, "datums": 2, "trials": [A, C],
        "tokens": [3, 3], "scored": [7, 0], "rewards": {A: 1.0, C: -1.0, "alone": 1.0},
        "advantages": {A: 1.0, C: -1.0, "alone": 0.0}, "masked": [B], "left_out": {"alone": "group too small"},
        "updates": [[C], [A]],
    }  # fmt: skip
    assert (second["first_optimizer_step"], second["optimizer_steps"], second["trials"]) == (3, 0, [])
    assert second["left_out"] == dict.fromkeys((A, B), "no advantage in the batch")
    assert (third["first_optimizer_step"], third["optimizer_steps"]) == (3, 1) and "updates" not in third
    assert ledger.counts["masked"] == 1 and ledger.counts["trained"] == 4


def test_a_step_that_is_made_again_of_other_datums_is_told_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(Ledger(tmp_path / "ledger.jsonl"), 7, batch(1.0, 0.0))
    again = Ledger(tmp_path / "ledger.jsonl")
    again.resumed(7)
    with caplog.at_level(logging.WARNING):
        train(again, 7, batch(1.0, 0.0))
        assert caplog.text == ""
        train(again, 7, batch(0.0, 1.0))
    _, _, second, third = read_lines(tmp_path / "ledger.jsonl")
    assert "differs_from" not in second and third["differs_from"] == second["digest"] != third["digest"]
    assert caplog.messages == [
        f"step 7 was trained on before, with other datums ({second['digest']}, now {third['digest']}): its trials on "
        f"disk or the settings have changed since; both records are in {tmp_path / 'ledger.jsonl'}"
    ]
    assert third["first_optimizer_step"] == 1 and again.counts["trained"] == 2


def test_a_step_on_conversations_has_no_trials_and_names_each_conversation_once(tmp_path: Path) -> None:
    ledger, sequences = Ledger(tmp_path / "ledger.jsonl"), batch(1.0, 0.0).sequences_D
    ledger.taught(0, (*sequences, *sequences))
    [record] = read_lines(tmp_path / "ledger.jsonl")
    taken = {name: record[name] for name in ("event", "step", "trials", "conversations", "conversation_tokens")}
    tokens = 2 * sum(len(one.tokens_T) for one in sequences)
    assert taken == {
        "event": "trained",
        "step": 0,
        "trials": [],
        "conversations": [A, B],
        "conversation_tokens": tokens,
    }


@pytest.mark.parametrize(
    ("file", "line"),
    [("metrics.jsonl", {"global_step": 1}), ("checkpoints.jsonl", {"step": 2}), ("trajectories/step-0/t.npz", None)],
)
def test_work_that_no_ledger_counts_is_refused(tmp_path: Path, file: str, line: dict[str, int] | None) -> None:
    for empty in ("metrics.jsonl", "checkpoints.jsonl"):
        append_line(tmp_path / empty, {"global_step": 0, "step": 0})
    require_ledger(tmp_path / "ledger.jsonl")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    append_line(tmp_path / file, line or {})
    with pytest.raises(UserError, match=r"resume=.*ledger.jsonl, which counts its trials.*, is missing or cut"):
        require_ledger(tmp_path / "ledger.jsonl")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for step in range(max(line.values()) if line else 0):
        with pytest.raises(UserError, match="is missing or cut"):
            require_ledger(tmp_path / "ledger.jsonl")
        ledger.trained(step, batch(1.0, 0.0), [[A]])
    run_trial(ledger, A)
    require_ledger(tmp_path / "ledger.jsonl")


def test_a_folder_that_was_renamed_ends_the_run(tmp_path: Path) -> None:
    """What it wrote since would be in two places, the old one without a configuration."""
    folder = tmp_path / "run"
    folder.mkdir()
    ledger = Ledger(folder / "ledger.jsonl")
    run_trial(ledger, A)
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    with pytest.raises(DiskFault, match=r"run: was removed or renamed while .*resume=.*/run$"):
        run_trial(ledger, NAMES[1])
    assert not [*folder.iterdir()]
    folder.rmdir()
    (tmp_path / "moved").rename(folder)
    run_trial(ledger, NAMES[1])


def test_a_batch_that_was_trained_on_is_settled(tmp_path: Path) -> None:
    """Otherwise its ungraded trials would run again after a resume, and the step be made of another batch."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    stored = {A: trajectory(A, None), B: trajectory(B), f"{C}-a3": trajectory(f"{C}-a3", None)}
    assert list(ledger.reusable("step", stored)) == [B]
    train(ledger, 0, batch(1.0, 0.0))
    again = Ledger(tmp_path / "ledger.jsonl")
    again.resumed(0)
    assert list(again.reusable("step", stored)) == [B, A, f"{C}-a3"], "graded ones first"
    assert list(again.reusable("eval", stored)) == [B]


def test_a_prompt_that_was_too_long_for_another_context_counts_no_more(tmp_path: Path) -> None:
    path, detail = tmp_path / "ledger.jsonl", f"{UNFIT}the prompt has 31990 tokens and the context 32000"
    lost = Trajectory("t", A, (), None, Outcome.INFRASTRUCTURE_ERROR, detail)
    first = Ledger(path, context_limit=32000)
    first.started(A, "t", 1)
    first.ended(lost, "quarantined")
    run_trial(first, B, "dropped", "u")
    assert "context_limit" not in read_lines(path)[-1]
    assert first.quarantined == {"t": f"infrastructure_error: {detail}"}
    for limit, out in ((32000, 1), (16000, 0), (64000, 0), (0, 1)):
        ledger = Ledger(path, context_limit=limit)
        assert (len(ledger.quarantined), len(ledger.faults_in_a_row)) == (out, out + 1)
        assert ledger.counts["quarantined"] == 1, "it is a trial of the run all the same"


def test_an_end_is_on_the_disk_when_it_is_noted_and_a_start_need_not_be() -> None:
    ledger = Ledger(Path("/dev/null"))  # can be written, and not synced
    ledger.started(A, "t", 1)
    with pytest.raises(OSError, match="Invalid argument"):
        ledger.ended(trajectory(A), "graded")


def test_a_torn_line_is_cut_before_the_next_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    run_trial(Ledger(path), A)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    again = Ledger(path)
    run_trial(again, B)
    assert [record["trial"] for record in read_lines(path)] == [A, A, B, B]
    assert [record["event"] for record in read_lines(path)][1] == "ended", "A's end was lost: it was killed"


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [(b'"sampled_tokens": 2', b'"sampled_tokens": 3'), (b'{"time', b'#"time'), (b'"crc"', b'"crd"')],
)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, whole: bytes, damaged: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for name in (A, B):
        run_trial(ledger, name)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + rest.replace(whole, damaged, 1))
    with pytest.raises(UserError, match="line 2 "):
        Ledger(path)
