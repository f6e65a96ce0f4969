"""A whole evaluation in which only the outside is replaced: what it runs, keeps, continues, refuses and reports."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import chz
import httpx
import pytest
import tinker

from harbortrainer.cli.main import main, run_command
from harbortrainer.config import Config, TrialSettings
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.evaluation import session
from harbortrainer.evaluation.arguments import FIELDS, FREE, EvalArgs, parse, trainer_config
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from tests.support.evaluations import KnowsAll, copy_tasks, make_run, recorder, result, run
from tests.support.fakes import QWEN3, byte_tokenizer, chat_template
from tests.support.recorded_run import fake_outside

__all__ = ["recorder", "run"]  # fixtures


def test_a_base_model_is_evaluated_and_counted(run, recorder, tmp_path, capsys):
    assert run("k=1,2", "temperature=0") == 0
    found = result(tmp_path / "out")
    (policy,) = found["policies"]
    # the fake verifier: odd tasks always pass; even ones fail with the first trial and pass with the second
    assert [task["rewards"] for task in policy["per_task"]] == [[0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    assert policy["reward"]["mean"] == 0.75
    assert (policy["pass_at"]["1"]["mean"], policy["pass_at"]["2"]["mean"]) == (0.75, 1.0)
    assert policy["reward"]["low"] < 0.75 < policy["reward"]["high"]
    assert policy["trials"] == found["planned_trials"] == 8
    assert {sample["temperature"] for sample in recorder.kinds("sample")} == {0.0}
    assert recorder.kinds("sampler") == [{"kind": "sampler", "base_model": "models/one"}]
    shown = capsys.readouterr().out
    assert "4 tasks x 2 trials = 8 trials planned, 0 of them finished earlier; greedy" in shown
    assert shown.index("trials planned") < shown.index("95% interval")


def test_nothing_finished_is_run_again_and_the_numbers_stay(run, recorder, tmp_path):
    assert run() == 0
    before = (tmp_path / "out" / "evaluation.json").read_bytes()
    gone = sorted((tmp_path / "out" / "trajectories").rglob("*.npz"))[3:5]
    for file in gone:
        file.unlink()
    assert run() == 0
    names = [trial["config"]["trial_name"] for trial in recorder.kinds("trial")]
    assert sorted(name.removesuffix("-a2") for name in names) == [file.stem for file in gone]
    assert (tmp_path / "out" / "evaluation.json").read_bytes() == before
    known = parse([f"out={tmp_path / 'out'}"])
    assert run_command(lambda: session.evaluate(known, fake_outside(recorder, KnowsAll(recorder)))) == 0
    assert (tmp_path / "out" / "evaluation.json").read_bytes() == before


def test_a_fault_is_no_failure_of_the_policy(run, recorder, tmp_path, capsys):
    assert run() == 0
    folder = tmp_path / "out" / "trajectories" / "eval_000000"
    for name in ("e000000-p00-g00", "e000000-p01-g00", "e000000-p01-g01"):
        trial = read_trajectory(folder / f"{name}.npz")
        lost = {"reward": None, "outcome": Outcome.INFRASTRUCTURE_ERROR}
        write_trajectory(folder, type(trial)(**{n: getattr(trial, n) for n in trial.__slots__} | lost))
    capsys.readouterr()
    assert run() == 1  # count-2 has no graded trial
    assert recorder.kinds("trial") == []
    (policy,) = result(tmp_path / "out")["policies"]
    assert policy["per_task"][0]["rewards"] == [1.0]
    assert (policy["ungraded"], policy["tasks_ungraded"], policy["ungraded_share"]) == (3, 1, 3 / 8)
    assert policy["reward"]["mean"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert "3 (37.5%) of 8 trials have no grade" in capsys.readouterr().out
    assert run("retry_ungraded=true") == 0
    assert len(recorder.kinds("trial")) == 3
    next((tmp_path / "out" / "trajectories").rglob("e000000-p02-g01*.npz")).unlink()
    assert run() == 0  # what was graded at last counts, whatever lies beside it
    assert len(recorder.kinds("trial")) == 1
    (policy,) = result(tmp_path / "out")["policies"]
    assert policy["ungraded"] == 0


def test_tasks_that_were_quarantined_are_repeated_on_request(run, recorder, tmp_path):
    """A network that was away for a while makes a verifier fail as often as a broken one."""
    assert run() == 0
    folder = tmp_path / "out" / "trajectories" / "eval_000000"
    ledger = Ledger(tmp_path / "out" / "ledger.jsonl")
    for name in ("e000000-p01-g00", "e000000-p01-g01"):
        lost = replace(read_trajectory(folder / f"{name}.npz"), reward=None, outcome=Outcome.VERIFIER_ERROR)
        write_trajectory(folder, lost)
        ledger.ended(lost, "quarantined")
    assert run() == 1 and recorder.kinds("trial") == []
    assert run("retry_ungraded=true") == 0
    assert len(recorder.kinds("trial")) == 2
    assert [policy["ungraded"] for policy in result(tmp_path / "out")["policies"]] == [0]


def test_two_policies_are_compared_on_the_same_tasks(run, recorder, tmp_path, capsys):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5, 10)
    assert run(f"checkpoint={folder}", "against=base") == 0
    found = result(tmp_path / "out")
    assert [policy["name"] for policy in found["policies"]] == ["run@10", "base"]
    assert recorder.kinds("restore") == [{"kind": "restore", "path": "tinker://m/weights/s10"}]
    assert found["comparison"]["difference"] == 0
    assert "not distinguishable; no difference was seen" in capsys.readouterr().out
    assert found["comparison"]["verdict"].startswith("+0.0 ±")
    samples = recorder.kinds("sample")
    assert len({sample["seed"] for sample in samples}) == len(samples)


def test_the_last_checkpoint_stays_the_one_it_was(run, recorder, tmp_path):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5)
    assert run(f"checkpoint={folder}") == 0
    more = (folder / "checkpoints.jsonl").read_text().replace("s5", "s9").replace('"step": 5', '"step": 9')
    with (folder / "checkpoints.jsonl").open("a") as file:
        file.write(more)
    next(tmp_path.rglob("e000000-p00-g00.npz")).unlink()
    assert run(f"checkpoint={folder}") == 0
    assert recorder.kinds("restore") == [{"kind": "restore", "path": "tinker://m/weights/s5"}]


def test_a_run_that_is_gone_is_named_when_its_evaluation_continues(run, tmp_path, capsys):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5)
    assert run(f"checkpoint={folder}") == 0
    shutil.rmtree(folder)
    assert run(f"checkpoint={folder}") == 2
    assert f"error: checkpoint={folder}: no run directory" in capsys.readouterr().err


def test_a_file_is_no_folder_of_an_evaluation(run, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run(f"out={tmp_path / 'file'}") == 2
    assert f"error: out={tmp_path / 'file'}: exists and is no evaluation" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["@7", "@5"])
def test_a_checkpoint_is_chosen_by_its_step(run, recorder, tmp_path, capsys, text):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5, 10)
    status = run(f"checkpoint={folder}{text}")
    if text == "@5":
        assert recorder.kinds("restore")[0]["path"] == "tinker://m/weights/s5"
    else:
        assert status == 2
        assert "there are 5, 10" in capsys.readouterr().err


def test_a_checkpoint_at_another_backend_is_refused(run, recorder, tmp_path, capsys):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5)
    (folder / "config.json").write_text(json.dumps({"model_name": "models/one", "backend": "skyrl-tx"}))
    assert run(f"checkpoint={folder}", "backend=tinker", "skyrl_tx_url=None") == 2
    error = capsys.readouterr().err
    assert "backend=tinker: the weights of run@5 are on backend=skyrl-tx; give backend=skyrl-tx skyrl_tx_url=" in error
    assert not recorder.kinds("open") and not (tmp_path / "out").exists()


def test_weights_that_the_server_does_not_have_end_it_at_once(run, tmp_path, capsys):
    class Knows(KnowsAll):
        async def get_weights_info_by_tinker_path(self, path):  # pyright: ignore[reportIncompatibleMethodOverride]
            answer = httpx.Response(404, request=httpx.Request("GET", "http://here:1"))
            raise tinker.NotFoundError("Model not found", response=answer, body={})

    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5)
    assert run(f"checkpoint={folder}", server=Knows) == 2
    shown = capsys.readouterr()
    assert "error: run@5: reading tinker://m/weights/s5: the server does not have these weights" in shown.err
    assert "as soon as the server answers" not in shown.out


def test_tasks_that_it_was_trained_on_are_refused_with_the_pair(run, tmp_path, capsys):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "count-1"), 5)
    (tmp_path / "trained" / "count-1").rename(tmp_path / "trained" / "renamed")
    assert run(f"checkpoint={folder}", "allow_family_overlap=true") == 2
    error = capsys.readouterr().err
    assert "count-1" in error and "leave the first of each pair out (tasks_exclude)" in error
    assert not (tmp_path / "out").exists()


def test_weights_of_another_renderer_are_refused(run, tmp_path, capsys):
    other = chat_template(enable_thinking=True).renderer
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5, renderer=other)
    assert run(f"checkpoint={folder}") == 2
    assert "enable_thinking" in capsys.readouterr().err


def test_sets_and_domains_have_numbers_of_their_own(run, tmp_path, capsys):
    copy_tasks(tmp_path / "a", "count-1", "create-1")
    copy_tasks(tmp_path / "b", "count-1")
    toml = tmp_path / "b" / "count-1" / "task.toml"
    toml.write_text(toml.read_text().replace("[metadata]", '[metadata]\ncategory = "counting"') if "[metadata]" in
                    toml.read_text() else toml.read_text() + '\n[metadata]\ncategory = "counting"\n')  # fmt: skip
    assert run(f"tasks_dir={tmp_path / 'a'},{tmp_path / 'b'}") == 0
    (policy,) = result(tmp_path / "out")["policies"]
    assert {name: part["tasks"] for name, part in policy["sets"].items()} == {"a": 2, "b": 1}
    assert policy["domains"]["counting"]["tasks"] == 1
    assert [task["name"] for task in policy["per_task"]] == ["a/count-1", "create-1", "b/count-1"]


def spoil(out: Path, what: str) -> None:
    """Change a file of an evaluation, or of its tasks."""
    name, _, text = what.partition(" ")
    if text:
        (out.parent / name).write_text(text)
    else:
        (out.parent / name).unlink()


@pytest.mark.parametrize(
    ("argument", "spoiled", "words"),
    [
        ("trials=3", "", "was started with trials=2"),
        ("temperature=0.5", "", "temperature=0.5"),
        ("model_name=models/two", "", "model_name=models/two"),
        ("trials=2", "out/config.json [1]", "config.json is damaged"),
        ("trials=2", 'out/plan.json "text"', "plan.json is damaged"),
        ("trials=2", "out/ledger.jsonl", "ledger.jsonl, which counts"),
        ("trials=2", "tasks/create-1/instruction.md Something else.", "create-1 changed since"),
    ],
)
def test_a_continued_evaluation_stays_the_same_one(run, tmp_path, capsys, argument, spoiled, words):
    assert run() == 0
    if spoiled:
        spoil(tmp_path / "out", spoiled)
    assert run(argument) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["k=3"], "pass@3 needs from 1 to trials=2"),
        (["trials=0"], "trials=0"),
        (["temperature=-1"], "temperature=-1"),
        (["against=base"], "the same policy"),
        (["checkpoint=nowhere"], "no run directory"),
        (["max_tokens=40000"], "context_limit"),
        (["batch_size=3"], "no such field"),
    ],
)
def test_mistakes_are_one_line_each(run, tmp_path, capsys, arguments, words):
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_training_run_is_not_continued_as_an_evaluation(tmp_path):
    folder = make_run(tmp_path / "run", copy_tasks(tmp_path / "trained", "rename-1"), 5)
    with pytest.raises(UserError, match="the directory of a training run"):
        parse(["model_name=m", "tasks_dir=t", f"out={folder}"])


def test_shared_fields_are_the_trainers():
    shared = list(chz.chz_fields(TrialSettings))
    args = parse(["model_name=m", "tasks_dir=t"])
    usual = Config(model_name="m", tasks_dir="t")
    config = trainer_config(args, "m")
    assert len(shared) > 20 and set(shared) <= set(FIELDS)
    for name in shared:
        assert getattr(args, name) == getattr(usual, name), name
        assert getattr(config, name) == getattr(args, name), name
    assert set(FREE) <= set(FIELDS)
    assert isinstance(args, EvalArgs)


def test_conversations_are_exported_and_shown(run, tmp_path, capsys, monkeypatch):
    assert run() == 0
    monkeypatch.chdir(tmp_path)
    byte_tokenizer(QWEN3).save_pretrained("models/one")
    capsys.readouterr()
    out = str(tmp_path / "out")
    assert main(["evaluate", "export", out]) == 0
    lines = read_lines(Path(capsys.readouterr().out.strip()))
    assert lines == read_lines(tmp_path / "out" / "conversations" / "eval_000000-tasks.jsonl")
    assert len(lines) == 8
    assert lines[0]["trial"] == "e000000-p00-g00"
    assert [message["role"] for message in lines[0]["messages"]] == ["user", "assistant", "user", "assistant"]
    assert [message["content"] for message in lines[0]["messages"]] == [
        "the task",
        "bbb",
        "the terminal of member 0",
        "bbb",
    ]
    assert main(["evaluate", "show", out]) == 0
    assert "e000000-p03-g01" in capsys.readouterr().out
    assert main(["evaluate", "show", out, "e000000-p00-g00"]) == 0
    assert "the terminal" in capsys.readouterr().out
    file = tmp_path / "out" / "trajectories" / "eval_000000" / "e000000-p00-g00.npz"
    typed = "\x1b[2J and [/brackets]"
    write_trajectory(file.parent, replace(read_trajectory(file), detail=typed))
    assert main(["evaluate", "show", out, "e000000-p00-g00"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and shown.count("[2J and [/brackets]") == 1
    assert main(["evaluate", "show", out, "nobody"]) == 2
    assert main(["evaluate", "show"]) == 2
