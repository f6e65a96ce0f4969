"""The package from Python: a run, a continuation, an evaluation, callbacks and objects, with fakes outside."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import chz
import pytest

import harbortrainer
from examples import guess
from harbortrainer import face, plugins
from harbortrainer.backend.contract import Contract
from harbortrainer.plugins import offer
from tests.conftest import ROOT
from tests.support import own_functions
from tests.support.recorded_run import Recorder, fake_outside
from tests.support.small_settings import copy_tasks


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> harbortrainer.Config:
    """Of a run in a folder without environment files."""
    tasks = copy_tasks(tmp_path / "tasks", ("count-1", "create-1"))
    monkeypatch.chdir(tmp_path)
    return harbortrainer.Config(
        backend="skyrl-tx", skyrl_tx_url="http://here:1", model_name="models/one", tasks_dir=tasks,
        logs_dir=str(tmp_path), batch_size=1, group_size=2, eval_tasks=("create-1",), save_every=1,
    )  # fmt: skip


def test_the_face_is_what_its_module_says() -> None:
    assert {*face.__all__} == harbortrainer._FACE
    assert all(getattr(harbortrainer, name) is getattr(face, name) for name in face.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = harbortrainer.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_the_pages_program_is_the_example() -> None:
    program = (ROOT / "examples" / "train.py").read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{program}```" in (ROOT / "docs" / "python.md").read_text()
    assert len([line for line in program.splitlines() if line.strip()]) <= 6


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import harbortrainer, sys; print(sorted(n for n in sys.modules if n.startswith('harbortrainer')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['harbortrainer']\n"


def test_a_run_and_its_continuation(config: harbortrainer.Config) -> None:
    steps: list[int] = []
    evaluations: list[int] = []
    told: dict[str, Any] = {
        "after_step": lambda step, row: steps.append(step),
        "after_evaluation": lambda step, row: evaluations.append(step),
        "outside": fake_outside(Recorder()),
    }
    run = harbortrainer.train(config, advantage=own_functions.squared, reward=own_functions.by_member, **told)
    assert (run.status, [row["global_step"] for row in run.metrics]) == (0, [0, 1])
    assert (steps, evaluations) == ([1], [0, 1])
    effective = json.loads((run.path / "effective.json").read_text())
    assert effective["brought"].keys() == {"advantage", "reward"}
    assert json.loads((run.path / "config.json").read_text())["advantage"] == "tests.support.own_functions:squared"
    longer = harbortrainer.continued(run.path, n_epochs=2)
    assert harbortrainer.train(longer, **told).path == run.path
    assert (steps, evaluations) == ([1, 2], [0, 1, 2])
    assert harbortrainer.train(longer, **told) == harbortrainer.Run(run.path, 0)
    assert len(steps) == 2


def test_what_a_callback_prints_is_shown(config: harbortrainer.Config, capsys: pytest.CaptureFixture[str]) -> None:
    harbortrainer.train(config, after_step=lambda step, row: print("told", step), outside=fake_outside(Recorder()))
    shown = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line.startswith("told")] == ["told 1"]


def test_an_error_of_a_callback_ends_the_run_as_it_is(config: harbortrainer.Config) -> None:
    with pytest.raises(ZeroDivisionError):
        harbortrainer.train(config, after_step=lambda step, row: print(1 / 0), outside=fake_outside(Recorder()))


def test_an_evaluation(config: harbortrainer.Config, tmp_path: Path) -> None:
    shared = {name: getattr(config, name) for name in ("backend", "skyrl_tx_url", "model_name", "tasks_dir")}
    what = harbortrainer.EvalConfig(**shared, logs_dir=str(tmp_path), trials=2)
    done = harbortrainer.evaluate(what, outside=fake_outside(Recorder()))
    assert done.status == 0 and (done.path / "evaluation.json").is_file()
    assert done.result["policies"][0]["tasks_ungraded"] == 0
    with pytest.raises(harbortrainer.UserError, match=r"k=9: pass@9 needs from 1 to trials=2"):
        harbortrainer.evaluate(chz.replace(what, k=(9,)))


def test_fine_tuning(config: harbortrainer.Config, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    shared = {name: getattr(config, name) for name in ("backend", "skyrl_tx_url", "model_name", "logs_dir")}
    what = harbortrainer.SftConfig(**shared, data=(str(tmp_path / "data.jsonl"),), batch_size=1)
    steps: list[int] = []
    run = harbortrainer.sft(what, after_step=lambda step, row: steps.append(step), outside=fake_outside(Recorder()))
    assert (run.status, len(run.metrics)) == (0, len(steps)) and steps
    with pytest.raises(harbortrainer.UserError, match="data: nothing to train on"):
        harbortrainer.sft(chz.replace(what, data=()))


@pytest.mark.parametrize(("function", "field"), [(lambda r, t: r, "advantage"), (Contract.__eq__, "reward")])
def test_what_a_setting_cannot_name_is_refused(config: harbortrainer.Config, function: Any, field: str) -> None:
    with pytest.raises(harbortrainer.UserError, match=f"{field}=.*: give a function or class that stands by itself"):
        harbortrainer.train(config, **{field: function})


def test_objects_of_a_script_have_the_name_of_its_file(tmp_path: Path) -> None:
    script = tmp_path / "own script.py"
    script.write_text(
        "from harbortrainer.plugins import bring, name_of\n"
        "def mine(rewards, trajectories): return rewards\n"
        "assert bring('advantage', name_of('advantage', mine)).value is mine, 'the script ran twice'\n"
        "print(name_of('advantage', mine))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{script}:mine\n"


def test_a_venue_of_this_process_has_a_name_for_tasks_dir(config: harbortrainer.Config) -> None:
    try:
        offer("venues", "mine", guess.VENUE)  # the same object twice
        games = chz.replace(config, tasks_dir="mine:9", eval_tasks=(), max_turns=1, max_steps=1)
        run = harbortrainer.train(games, venues={"mine": guess.VENUE}, outside=fake_outside(Recorder()))
        noted = json.loads((run.path / "effective.json").read_text())["brought"]
        assert noted["tasks_dir=mine"].startswith("sha256:") and run.status == 0
        with pytest.raises(harbortrainer.UserError, match="the name 'harbor' is taken"):
            harbortrainer.train(config, venues={"harbor": guess.VENUE})
    finally:
        plugins._offered.clear()
        plugins.plugin.cache_clear()
