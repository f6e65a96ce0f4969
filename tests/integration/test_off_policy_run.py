"""Trials and evaluations beside updates, with a real server and real containers: a kill during an update, a resume."""

from pathlib import Path

import pytest

from bench.journal import audit
from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.pace import GroupSlot
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from tests.support.command_runs import called, command, containers, run, start, until

K, STEPS = 2, 3


@pytest.mark.nightly
def test_killed_while_trials_run_beside_an_update_it_goes_on(
    server_url: str, docker_ready: str, tmp_path: Path
) -> None:
    settings = (
        f"max_steps_off_policy={K}",
        f"max_steps={STEPS}",
        "eval_tasks=create-6",
        "eval_every=2",
        "eval_group_size=2",
        "observation_loss_coef=0.05",
    )
    process = start(command(server_url, tmp_path, "run_name=run", *settings, "save_every=2", "n_parallel_envs=8"))
    folder = RunDirectory(tmp_path / "run")

    def composed() -> bool:
        return folder.ledger.exists() and any(
            r["event"] == "composed" and r["step"] == 1 for r in read_lines(folder.ledger)
        )

    until(process, composed)
    process.kill()
    process.communicate()
    before = read_lines(folder.ledger, checked=True)
    done = called([*command(server_url, tmp_path)[:3], f"resume={folder.path}"])
    assert done.returncode == 0, done.stdout + done.stderr

    seen = audit(folder, STEPS)
    faults = ("repeated", "unsettled", "skipped_or_doubled", "differing", "not_of_its_trials", "too_old", "rows_wrong")
    assert {name: getattr(seen, name) for name in faults} == dict.fromkeys(faults, 0)
    assert main(["replay", str(folder.path)]) == 0, "what the terminal answered is in the datums' digests"
    records = read_lines(folder.ledger, checked=True)
    assert records[: len(before)] == before
    rows = read_lines(folder.metrics)
    assert any(row.get("off_policy/staleness_max", 0) > 0 for row in rows)
    assert any(row.get("observation/nats", 0) > 0 for row in rows)
    assert all(row["eval/observation/tokens"] > 0 for row in rows if "eval/reward_mean" in row)
    trained = [row for row in rows if row.get("optim/steps")]
    assert trained and all(row["off_policy/ratio_p50"] == pytest.approx(1, abs=0.2) for row in trained)
    assert containers(folder.path) == []
    for step in (0, 2, STEPS):  # evaluations beside updates, with the weights of their step
        evaluated = read_batch(folder.trajectories("eval", step)).values()
        assert {turn.weights_version for trial in evaluated for turn in trial.turns} <= {step} and len(evaluated) == 2
        assert "eval/reward_mean" in rows[step]
    assert read_lines(folder.path / "references.jsonl") == []


@pytest.mark.nightly
def test_on_policy_environments_start_during_updates_and_constant_groups_are_replaced(
    server_url: str, docker_ready: str, tmp_path: Path
) -> None:
    steps = 3
    given = ("run_name=run", f"max_steps={steps}", "oversample_max=2", "n_parallel_envs=8", "max_turns=2")
    done = run(command(server_url, tmp_path, *given))
    assert done.returncode == 0, done.stdout + done.stderr

    folder = RunDirectory(tmp_path / "run")
    seen = audit(folder, steps)
    faults = ("repeated", "unsettled", "skipped_or_doubled", "differing", "not_of_its_trials", "too_old", "rows_wrong")
    assert {name: getattr(seen, name) for name in faults} == dict.fromkeys(faults, 0)
    records = read_lines(folder.ledger, checked=True)
    composed = {r["step"]: [tuple(group) for group in r["groups"]] for r in records if r["event"] == "composed"}
    places = [place for groups in composed.values() for place in groups]
    assert sorted(composed) == [*range(steps)] and len(places) == len(set(places))
    rows = read_lines(folder.metrics)
    assert [row["group/oversampled"] for row in rows[1:]] == [len(composed[step]) - 2 for step in range(steps)]
    for step in range(1, steps):
        update = next(n for n, r in enumerate(records) if r["event"] == "trained" and r["step"] == step - 1)
        ahead = [TrialName.parse(r["trial"]) for r in records[:update] if r["event"] == "started"]
        assert {name.group[1:] for name in ahead if name.kind == "step"} & {*composed[step]}, "started in the update"
        for batch, problem in composed[step]:
            trials_G = read_batch(folder.trajectories("step", batch), f"{GroupSlot(batch, problem)}-*").values()
            assert {turn.weights_version for trial in trials_G for turn in trial.turns} <= {step}
    assert containers(folder.path) == []
