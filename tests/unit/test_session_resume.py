"""The same command line again: a run that is over says so, one that is not goes on, one that is another is refused."""

import json
import shutil
from typing import Any

import httpx
import numpy as np
import pytest
import tinker

from harbortrainer.durable.files import read_json, write_json
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.replay.arguments import ReplayArgs
from harbortrainer.replay.replay import replay
from harbortrainer.report.write import write_report
from harbortrainer.run.directory import RunDirectory
from tests.support.recorded_run import FakeServer
from tests.support.resumed import Again, again, of

__all__ = ["again"]  # fixtures


async def test_a_longer_one_goes_on_from_its_last_state(again: Again, capsys: pytest.CaptureFixture[str]) -> None:
    await again.process()
    events = await again.process("n_epochs=2")
    out = capsys.readouterr().out
    assert f"continues {again.folder}" in out and "n_epochs=2, was None" in out
    assert of("restore", events) == [{"kind": "restore", "step": 2}] and not of("create", events)
    assert again.steps() == [1, 2, 3, 4]
    (change,) = read_lines(again.folder / "config_changes.jsonl")
    assert change["from_step"] == 2 and change["changes"] == {"n_epochs": {"before": None, "now": 2}}
    events = await again.process("n_epochs=2")
    assert [event["kind"] for event in events] == ["stop", "tokenizer"], "it spends nothing"
    assert f"{again.folder} is complete" in capsys.readouterr().out


def with_base(digest: str) -> type[FakeServer]:
    return type("WithBase", (FakeServer,), {"about": {"base_weights": digest}})


async def test_a_server_with_other_base_weights_under_the_same_name_is_refused(again: Again) -> None:
    await again.process(server=with_base("aaaa"))
    for other in (again.folder, again.folder.parent / "second"):
        start = () if other == again.folder else (f"init_from={again.folder}", "run_name=second")
        events = await again.process("n_epochs=2", *start, server=with_base("bbbb"))
        (refused,) = of("refused", events)
        assert "base weights aaaa, the server has bbbb" in refused["words"] and not of("optim_step", events)
    assert not other.exists()
    events = await again.process("n_epochs=2")
    assert again.steps() == [1, 2, 3, 4], "a server that reports none is believed"
    (refused,) = of("refused", await again.process("n_epochs=3", server=with_base("bbbb")))
    assert "base weights aaaa" in refused["words"]


def mark_as_earlier_versions_did(run: RunDirectory) -> None:
    """Give every trial a mark in all files, and the run the setting that treats them; nothing else is changed."""
    reason = ["mean reward of the task jumped from 0.00 to 1.00"]
    records = read_lines(run.ledger)
    run.ledger.unlink()
    for record in records:
        if record["event"] == "ended":
            record |= {"suspect": reason, "verification_sec": 0.2}
        elif record["event"] == "trained":
            record["suspect"] = dict.fromkeys(record["trials"], reason)
        append_line(run.ledger, record, checked=True)
    for path in run.path.glob("trajectories/*/*.npz"):
        arrays = dict(np.load(path))
        meta = json.loads(str(arrays["meta"]))
        del meta["depends"]
        meta |= {"suspect": reason, "stats": meta["stats"] | {"verification_seconds": 0.2}}
        np.savez_compressed(path, allow_pickle=False, **arrays | {"meta": np.array(json.dumps(meta))})
    saved = read_json(run.config)
    policy, given = {"suspect": "mask", "max_turns": "mask"}, {"keep_processes": True}
    write_json(run.config, saved | {"outcome_policy": policy, "environment_kwargs": given})
    rows = read_lines(run.metrics)
    run.metrics.write_text("".join(json.dumps(row | {"rollout/suspect": 4.0}) + "\n" for row in rows))


async def test_a_run_of_a_version_that_marked_trials_goes_on_is_replayed_and_shown(
    again: Again, caplog: pytest.LogCaptureFixture
) -> None:
    await again.process("outcome_policy.max_turns=mask")
    run = RunDirectory(again.folder)
    mark_as_earlier_versions_did(run)
    assert replay(run, ReplayArgs(run_dir=str(run.path))).rebuilt
    events = await again.process("n_epochs=2")
    assert of("restore", events) and again.steps()[-1] == 4
    assert "outcome_policy.suspect=mask, environment_kwargs.keep_processes=true: without effect" in caplog.text
    report = replay(run, ReplayArgs(run_dir=str(run.path)))
    assert report.rebuilt and len(report.steps) == 4
    assert write_report(run.path).stat().st_size > 10_000


async def test_a_task_that_changed_meanwhile_is_refused_by_name(again: Again) -> None:
    await again.process("max_trials=11")
    (again.tasks / "count-2" / "instruction.md").write_text("Something else.")
    (refused,) = of("refused", await again.process("max_trials=0"))
    assert "count-2 has changed" in str(refused["words"])


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_run_whose_ledger_is_missing_is_refused_by_name(again: Again, emptied: bool) -> None:
    await again.process("max_trials=11")
    ledger = again.folder / "ledger.jsonl"
    ledger.write_text("") if emptied else ledger.unlink()
    events = await again.process("max_trials=0")
    (refused,) = of("refused", events)
    assert "ledger.jsonl, which counts its trials and tokens, is missing" in str(refused["words"])
    assert not of("create", events) and not of("restore", events)


async def test_killed_before_its_first_state_it_begins_from_the_seed(again: Again) -> None:
    await again.process("max_trials=11")
    (again.folder / "checkpoints.jsonl").unlink()
    events = await again.process("max_trials=0")
    assert len(of("create", events)) == 1 and not of("restore", events)
    assert again.steps() == [1, 2]


async def test_steps_are_made_again_when_context_limit_is_below_their_trials(again: Again) -> None:
    await again.process()
    (again.folder / "checkpoints.jsonl").unlink()
    events = await again.process("context_limit=40", "max_tokens=8", "n_epochs=1")
    assert not of("refused", events) and not of("trial", events)
    assert len(of("optim_step", events)) == 2, "both steps from the trials on disk"


async def test_a_batch_is_never_of_two_temperatures(again: Again, capsys: pytest.CaptureFixture[str]) -> None:
    await again.process("max_trials=14")
    batch = again.folder / "trajectories" / "step_000001"
    before = {path.name: path.read_bytes() for path in batch.glob("*.npz")}
    assert len(before) == 4
    capsys.readouterr()
    events = await again.process("max_trials=0", "temperature=0.5")
    assert {event["temperature"] for event in of("sample", events)} == {0.5} and len(of("trial", events)) == 8
    (aside,) = batch.parent.glob("step_000001_before_*")
    assert {path.name: path.read_bytes() for path in aside.glob("*.npz")} == before, "nothing is lost"
    out = capsys.readouterr().out
    assert "4 finished trials of step 2 are not used, they ran with other temperature: s000001-p0" in out
    trained = [record for record in read_lines(again.folder / "ledger.jsonl") if record["event"] == "trained"]
    assert len(trained[1]["trials"]) == 8 and not set(trained[1]["trials"]) & {name[:-4] for name in before}
    assert len(list(batch.glob("*.npz"))) == 8


async def test_a_change_that_trials_do_not_depend_on_keeps_them(again: Again) -> None:
    await again.process("max_trials=14")
    events = await again.process("max_trials=0", "learning_rate=0.5")
    assert len(of("trial", events)) == 4


async def test_an_evaluation_is_never_of_two_temperatures(again: Again) -> None:
    held_out = ("eval_tasks=create-1,create-2", "eval_group_size=2", "n_epochs=2", "eval_every=1")
    await again.process(*held_out, "max_trials=2")
    events = await again.process(*held_out, "max_trials=7", "temperature=0.5")
    temperatures = [event["temperature"] for event in of("sample", events)]
    assert temperatures.count(0.5) == 10 and again.steps() == [0], "4 trials of 2 turns, and of the next step"
    evaluated = again.folder / "trajectories" / "eval_000000"
    assert len(list(evaluated.glob("*.npz"))) == 4
    events = await again.process(*held_out, "max_trials=9", "temperature=0.7")
    assert {event["temperature"] for event in of("sample", events)} == {0.7}
    assert len(list(evaluated.glob("*.npz"))) == 4, "an evaluation that has its row is over"


async def test_every_evaluation_without_a_row_runs_again_with_another_temperature(
    again: Again, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = ("eval_tasks=create-1,create-2", "eval_group_size=2", "n_epochs=2", "eval_every=1")
    await again.process(*held_out, "max_trials=2")
    trajectories = again.folder / "trajectories"
    (trajectories / "eval_000001").mkdir()  # a second one, which waited in line
    for path in (trajectories / "eval_000000").glob("*.npz"):
        shutil.copy(path, trajectories / "eval_000001" / path.name.replace("e000000", "e000001"))
    await again.process(*held_out, "max_trials=2", "temperature=0.5")
    out = capsys.readouterr().out
    for step in (0, 1):
        assert f"2 finished trials of the evaluation after step {step} are not used" in out
        assert len(list(trajectories.glob(f"eval_{step:06d}_before_*/*.npz"))) == 2


async def test_max_steps_alone_decides_and_n_epochs_that_ends_earlier_is_said(
    again: Again, capsys: pytest.CaptureFixture[str]
) -> None:
    await again.process("max_steps=3", "n_epochs=1")
    assert again.steps() == [1, 2]
    assert "max_steps=3: n_epochs=1 ends the run after 2 steps; leave n_epochs out" in capsys.readouterr().out
    await again.process("max_steps=3", "n_epochs=None")
    assert again.steps() == [1, 2, 3]
    assert "ends the run" not in capsys.readouterr().out


async def failing(error: Exception) -> None:
    raise error


class Lost(FakeServer):
    def create_lora_training_client(self, *_: object, **__: object) -> Any:
        return failing(tinker.APIConnectionError(request=httpx.Request("POST", "http://here:1")))


async def test_a_server_lost_before_the_first_adapter_leaves_a_run_that_goes_on(again: Again) -> None:
    (refused,) = of("refused", await again.process(server=Lost))
    assert "the server does not answer" in str(refused["words"])
    assert f"continue with: python -m src.train resume={again.folder}" in (again.folder / "run.log").read_text()
    await again.process()
    assert again.steps() == [1, 2]


@pytest.mark.parametrize("backend", ["tinker", "skyrl-tx"])
async def test_only_the_server_that_compiles_for_each_length_gets_powers_of_two(
    again: Again, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    url = "None" if backend == "tinker" else "http://here:1"
    events = await again.process(
        f"backend={backend}", f"skyrl_tx_url={url}", "context_limit=200", "max_tokens=190", "max_trials=1"
    )
    prompts = {(len(event["prompt"]), event["max_tokens"]) for event in of("sample", events)}
    room = {prompt: 200 - prompt for prompt, _ in prompts}
    assert prompts and all(room[prompt] < 190 for prompt in room)
    if backend == "tinker":
        assert dict(prompts) == room
    else:
        assert all(most & (most - 1) == 0 and room[prompt] / 2 < most <= room[prompt] for prompt, most in prompts)
