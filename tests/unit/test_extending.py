"""docs/extending.md works as it stands, in a whole run and its continuation."""

import json
import shutil
from pathlib import Path

import pytest

from harbortrainer.plugins import bring
from harbortrainer.run.trajectories import read_batch
from tests.conftest import ROOT
from tests.support.recorded_run import recorded_run

PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = ROOT / "examples"


def test_the_pages_examples_are_the_files_and_short() -> None:
    for name in ("advantage.py", "reward.py", "dpo.py", "agent.py", "one-shot"):
        text = (EXAMPLES / name).read_text()
        assert f"```python\n{text}```" in PAGE or name != "advantage.py", name
        assert f"(../examples/{name})" in PAGE, name
        assert len(text.splitlines()) <= 30, name
    assert len((EXAMPLES / "guess.py").read_text().splitlines()) <= 100
    assert len((EXAMPLES / "loop.py").read_text().splitlines()) <= 300


async def test_the_pages_functions_shape_a_run_and_stay_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    code = "\n".join((EXAMPLES / name).read_text() for name in ("advantage.py", "reward.py"))
    mine.write_text(code)
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    tasks = tmp_path / "tasks"
    for name in ("count-1", "create-1"):
        shutil.copytree(ROOT / "datasets" / "quickstart" / name, tasks / name)
    base = (
        *("backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", "batch_size=2", "group_size=2"),
        *(f"tasks_dir={tasks}", f"logs_dir={tmp_path}", "run_name=run"),
    )
    await recorded_run([*base, f"advantage={mine}:against_the_best", f"reward={mine}:short"])
    run = tmp_path / "run"
    trials = read_batch(run / "trajectories" / "step_000000")
    assert len(trials) == 4
    assert all(one.shaping == {"reward": pytest.approx(-0.01 * len(one.turns))} for one in trials.values())
    assert json.loads((run / "effective.json").read_text())["brought"].keys() == {"advantage", "reward"}
    mine.write_text(code.replace("0.01", "0.02"))
    bring.cache_clear()
    *_, refusal = await recorded_run([f"resume={run}", "n_epochs=2"])
    assert "its code has changed since the run began" in refusal
