"""A whole evaluation whose policy is the tasks' own solutions: no server, no key, and refusals before any trial."""

from pathlib import Path

import numpy as np
import pytest

from harbortrainer.backend.datum import check_sequence
from harbortrainer.errors import UserError
from harbortrainer.evaluation.oracle import find_scripts
from harbortrainer.evaluation.policies import find_subject
from harbortrainer.learning.datums import training_sequences
from harbortrainer.policy.solution import typed_answers
from harbortrainer.run.trajectories import read_batch
from tests.support.evaluations import recorder, result, run
from tests.support.fakes import chat_template
from tests.support.shapes import STEPS
from tests.support.task_folder import write_task

__all__ = ["recorder", "run"]
ORACLE = "checkpoint=oracle"


def test_an_oracle_needs_no_server(run, recorder, tmp_path, monkeypatch, capsys):
    """The fake trial takes two answers and gives rewards by the trial's name."""
    monkeypatch.delenv("TINKER_API_KEY")
    assert run(ORACLE, "backend=tinker", "skyrl_tx_url=None") == 0
    for kind in ("open", "health", "sampler", "sample", "restore", "close"):
        assert not recorder.kinds(kind), kind
    assert len(recorder.kinds("trial")) == 8
    assert "oracle: 4 tasks x 2 trials = 8 trials planned, 0 of them finished earlier; no server is needed" in (
        capsys.readouterr().out
    )
    (policy,) = result(tmp_path / "out")["policies"]
    assert (policy["name"], policy["path"], policy["reward"]["mean"]) == ("oracle", None, 0.75)
    trials = read_batch(tmp_path / "out" / "trajectories" / "eval_000000")
    count = typed_answers((tmp_path / "tasks" / "count-1" / "solution" / "solve.sh").read_text())
    template = chat_template()
    for name in ("e000000-p00-g00", "e000000-p00-g01"):
        assert [turn.text for turn in trials[name].turns] == count[:2]
        assert [list(turn.completion_tokens_T) for turn in trials[name].turns] == [*map(template.completion, count[:2])]
    for number, trial in enumerate(trials.values()):
        assert {turn.weights_version for turn in trial.turns} == {0}
        for sequence in training_sequences(trial, 1.0):
            check_sequence(sequence, number, len(template.tokenizer))
            assert not np.any(sequence.logprobs_T)


@pytest.mark.parametrize("arguments", [(ORACLE, "against=base"), ("checkpoint=base", "against=oracle")])
def test_an_oracle_is_compared_with_weights(run, recorder, tmp_path, arguments):
    assert run(*arguments) == 0
    found = result(tmp_path / "out")
    number = [policy["name"] for policy in found["policies"]].index("oracle")
    assert found["comparison"]["difference"] == 0
    assert len(recorder.kinds("sample")) == 16, "the base model's turns alone"
    typed = read_batch(tmp_path / "out" / "trajectories" / f"eval_{number:06d}")
    assert {turn.text for trial in typed.values() for turn in trial.turns}.isdisjoint({"bbb"})
    sampled = read_batch(tmp_path / "out" / "trajectories" / f"eval_{1 - number:06d}")
    assert {turn.text for trial in sampled.values() for turn in trial.turns} == {"bbb"}
    assert {turn.weights_version for trial in typed.values() for turn in trial.turns} == {number}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["against=oracle"], "against=oracle: the same policy"),
        (["max_tokens=40"], "max_tokens=40: solutions have answers of up to "),
        (["max_turns=2"], "max_turns=2: solutions take up to 3 turns; set max_turns=3, or for the longer ones leave"),
        (["enable_summarize=true"], "enable_summarize=true: a solution has no answer"),
    ],
)
def test_what_cannot_be_typed_is_refused_at_once(run, recorder, tmp_path, capsys, arguments, words):
    assert run(ORACLE, *arguments) == 2
    assert words in capsys.readouterr().err
    assert not recorder.kinds("images") and not (tmp_path / "out").exists()


def test_the_named_max_tokens_is_enough(run, capsys):
    assert run(ORACLE, "max_tokens=100", "context_limit=10000") == 2
    said = capsys.readouterr().err
    most = said.partition("set max_tokens=")[2].partition(",")[0]
    assert run(ORACLE, f"max_tokens={int(most) - 1}", "context_limit=10000") == 2
    assert run(ORACLE, f"max_tokens={most}", "context_limit=10000") == 0


def test_tasks_without_a_solution_are_named_with_the_fix(run, tmp_path, capsys):
    (tmp_path / "tasks" / "count-2" / "solution" / "solve.sh").unlink()
    (tmp_path / "tasks" / "create-1" / "solution" / "solve.sh").write_text("#!/usr/bin/env python3\nprint()\n")
    (tmp_path / "tasks" / "create-2" / "solution" / "data.csv").write_text("1\n")
    assert run(ORACLE) == 2
    said = capsys.readouterr().err
    fix = "tasks_exclude=count-2,create-1"
    assert "tasks_dir: 2 of 4 tasks have no solution/solve.sh for a shell" in said and said.rstrip().endswith(fix)
    assert run(ORACLE, fix) == 0
    assert "the solutions of 1 tasks have more files or an environment" in capsys.readouterr().out


def test_no_base_model_is_known_to_an_oracle(run, capsys):
    assert run(ORACLE, "model_name=None") == 2
    assert "model_name" in capsys.readouterr().err


def test_each_step_has_its_own_solution_or_that_of_the_task(tmp_path: Path):
    task = write_task(tmp_path / "steps", **STEPS)
    assert find_scripts(task) == ["#!/bin/bash\necho Hello >> hello.txt\n"] * 2
    (task / "steps" / "one" / "solution" / "solve.sh").write_text("ls\n")
    (task / "steps" / "two" / "solution" / "solve.sh").unlink()
    assert find_scripts(task) == []
    (task / "steps" / "two" / "solution").rmdir()
    assert find_scripts(task) == ["ls\n", (task / "solution" / "solve.sh").read_text()]


def test_a_folder_with_the_name_is_given_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "oracle").mkdir()
    (tmp_path / "oracle" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_subject("checkpoint", "oracle").is_oracle
    with pytest.raises(UserError, match=r"checkpoint=./oracle: no such checkpoint"):
        find_subject("checkpoint", "./oracle")
