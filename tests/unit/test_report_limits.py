"""The report of odd, damaged and large runs: named, told, bounded."""

from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import append_line, read_lines
from harbortrainer.errors import UserError
from harbortrainer.report.panel import MOST_MESSAGES, Pieces, cut, panel
from harbortrainer.report.run import spread, timelines
from harbortrainer.report.trials import TrialRow, choose, read_trials
from harbortrainer.report.write import leave_report, packed, page, write_report
from harbortrainer.run.conversations import own_conversation
from tests.support.made_run import MadeRun
from tests.support.report_parts import blobs, only_run, small_run


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return small_run(tmp_path / "run")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """One run for the tests that write nothing but its page."""
    return small_run(tmp_path_factory.mktemp("unchanged") / "run")


def test_a_run_without_steps_evaluation_or_trials_has_a_page(tmp_path: Path) -> None:
    run = tmp_path / "empty"
    run.mkdir()
    (run / "config.json").write_text("{}")
    shown = only_run(write_report(run))
    assert shown["metrics"]["steps"] == [] and shown["trials"]["name"] == [] and shown["funnel"] == {}


def test_numbers_that_are_none_are_told(made: MadeRun) -> None:
    append_line(made.path / "metrics.jsonl", {"global_step": 3, "reward/mean": float("nan"), "kl/base": "x"})
    metrics = only_run(write_report(made.path))["metrics"]
    assert metrics["values"]["reward/mean"][3] is None and metrics["odd"] == {"reward/mean": 1, "kl/base": 1}


def test_a_step_that_was_written_twice_is_shown_once(made: MadeRun) -> None:
    append_line(made.path / "metrics.jsonl", {"global_step": 2, "reward/mean": 0.123})
    metrics = only_run(write_report(made.path))["metrics"]
    assert metrics["steps"] == [0, 1, 2] and metrics["values"]["reward/mean"][2] == 0.123


def test_damaged_files_are_named(made: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = made.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0] + lines[1][:50] + "\n" + lines[2])
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is damaged"):
        write_report(made.path)
    assert main(["report", str(made.path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert leave_report(made.path).startswith("no report: ")


def test_the_end_of_a_run_survives_any_file(made: MadeRun) -> None:
    append_line(made.path / "ledger.jsonl", {"event": "ended", "trial": ["no name"], "reward": "high"}, checked=True)
    assert leave_report(made.path).startswith("no report: ")
    assert leave_report(made.path / "nothing").startswith("no report: ")


def test_damaged_trials_leave_a_note(made: MadeRun) -> None:
    name = "s000001-p00-g00"
    (made.path / "trajectories" / "step_000001" / f"{name}.npz").write_bytes(b"no archive")
    folder = made.path / "rollouts" / "step_000001" / name
    (folder / "agent" / "trajectory.json").write_text('{"steps": [1, 2')
    (folder / "result.json").write_text("[]")
    shown = panel(made.path, TrialRow(name), Pieces(""))
    assert shown["messages"] == [] and shown["notes"] == [
        f"no tokens: {name}.npz: damaged trajectory file (File is not a zip file)"
    ]
    (folder / "agent" / "trajectory.json").write_text('{"steps": ' + "[" * 100_000)  # the policy may write there
    for file in ("result.json", "conversation.json"):
        (folder / file).write_text('{"steps": ' + "[" * 100_000)
    assert panel(made.path, TrialRow(name), Pieces(""))["messages"] == [] and own_conversation(folder) == ([], [])
    assert leave_report(made.path).startswith("report: ")


def test_panels_are_limited_and_the_most_telling_come_first() -> None:
    trials = [
        TrialRow(f"s{i // 100:06d}-p00-g{i % 100:02d}", ended=1.0, outcome="completed", reward=i / 1000)
        for i in range(1000)
    ]
    trials[5].reward, trials[5].outcome, trials[5].cause = None, "infrastructure_error", "disk"
    chosen = choose(trials, 60)
    assert len(chosen) == len(set(chosen)) == 60
    assert {5, 900, 999, 0} <= set(chosen[:12]), "the failure, the last batch, the best and the worst"
    assert choose([], 60) == []


def test_timelines_are_those_of_the_last_batches_first(unchanged: MadeRun) -> None:
    assert list(only_run(write_report(unchanged.path))["timelines"]) == ["eval_000000", "step_000000", "step_000001"]
    trials = read_trials(read_lines(unchanged.path / "ledger.jsonl"))
    assert list(timelines(unchanged.path, trials, most=12)) == ["step_000001"]
    assert spread(list(range(6))) == [5, 0, 2, 1, 3, 4]


def test_a_page_holds_as_many_panels_as_asked_for(unchanged: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(unchanged.path), "panels=4", f"out={unchanged.path / 'few.html'}"]) == 0
    assert capsys.readouterr().out.strip().endswith("few.html")
    assert len(only_run(unchanged.path / "few.html")["panels"]) == 4


def test_wrong_arguments_are_one_line(unchanged: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([str(tmp_path)], [str(unchanged.path), "panels=x"], ["panels=1"], [str(unchanged.path)] * 2):
        assert main(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_texts_are_cut_in_the_middle() -> None:
    assert cut("a\n\n\n") == "a"
    assert cut("a" + "\n" * 20 + "b") == "a\n\n[… 19 blank lines …]\n\nb"
    short = cut("x" * 100 + "y" * 100, most=30)
    assert short.startswith("x" * 20) and short.endswith("y" * 10) and "170 characters" in short


def test_panels_stop_where_the_page_is_full(unchanged: MadeRun) -> None:
    everything = blobs(write_report(unchanged.path, most_bytes=30_000))
    shown = everything["data"]["runs"][0]["panels"]
    assert 0 < len(shown) < 36 and len(everything) == len(shown) + 2  # the data and the shared texts
    empty = len(page("run", {"data": packed(everything["data"])}))
    size = (unchanged.path / "report.html").stat().st_size
    assert size < empty + 30_000 + 100 * len(everything)  # a tag for each panel


def test_long_trials_say_what_is_left_out(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run", tasks=1, group=2, turns=130)
    made.train(0)
    shown = panel(made.path, TrialRow("s000000-p00-g00"), Pieces("models/quickstart"))
    (note,) = shown["notes"]
    assert len(shown["messages"]) == MOST_MESSAGES and note.endswith(" messages in the middle are left out")
    assert len(shown["tokens"]["turns"]) < 130 and shown["tokens"]["left_out"] > 0 and shown["tokens"]["named"]


def test_tokens_of_an_evaluation_of_checkpoints_are_text(made: MadeRun) -> None:
    """It has no `model_name`; its policies have."""
    (made.path / "config.json").write_text('{"model_name": null}')
    (made.path / "plan.json").write_text('{"subjects": [{"model_name": null}, {"model_name": "models/quickstart"}]}')
    everything = blobs(write_report(made.path))
    panels = everything["data"]["runs"][0]["panels"].values()
    assert all(everything[f"panel{number}"]["tokens"]["named"] for number in panels)


def test_without_a_tokenizer_ids_are_shown(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in ("", "no/such-model", "no such: model", str(tmp_path)):
        assert not Pieces(name).known and Pieces(name).text(7) == "7 "
    assert Pieces("models/quickstart").text(10**9) == "<1000000000>"
