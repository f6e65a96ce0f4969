"""`plan=true`: ranges from earlier runs, bounds without one, nothing spent and nothing written."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import session
from src.budget import dry_run
from src.budget.forecast import Forecast, from_limits
from src.budget.prices import Price, Tariff
from src.budget.ranges import Range, predict, predict_time
from src.budget.scope import Scope
from src.cli.main import main as train_main
from src.cli.training import DRY_RUN, parse
from src.config import SETTINGS, Config
from src.errors import UserError
from src.run.jsonl import read_lines
from src.setting import Resume
from src.stop import Stop
from src.validation import validate
from tests.recorded_run import Recorder, replace_the_outside

TASKS = ("count-1", "count-2", "create-1", "create-2")


class Planner:
    """Runs and plans on one set of tasks; server, Docker and Harbor's trial are replaced."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.logs, self._monkeypatch = folder, folder / "logs", monkeypatch
        self.recorder = Recorder()
        for name in TASKS:
            shutil.copytree(Path("datasets/quickstart") / name, folder / "tasks" / name)
        self._base = (
            "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={folder / 'tasks'}",
            "batch_size=2", "group_size=3", "n_epochs=2", f"logs_dir={self.logs}",
        )  # fmt: skip

    async def process(self, *arguments: str) -> int:
        self.recorder = Recorder()
        with self._monkeypatch.context() as patched:
            replace_the_outside(patched, self.recorder)
            config = parse([*self._base, *arguments])
            validate(config)
            return await session.train(config, Stop())

    async def plan(self, *arguments: str) -> dict[str, Any]:
        file = self.folder / "plan.json"
        assert await self.process("plan=true", f"json={file}", *arguments) == 0
        return json.loads(file.read_text())

    def spent(self, name: str) -> float:
        return read_lines(self.logs / name / "metrics.jsonl")[-1]["spend/tokens"]


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    return Planner(tmp_path, monkeypatch)


def tokens(found: dict[str, Any]) -> tuple[float, float]:
    kinds = [found["forecast"][kind] for kind in ("prompt", "sampled", "trained")]
    return sum(kind["low"] for kind in kinds), sum(kind["high"] for kind in kinds)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


async def test_the_first_plan_has_bounds_from_the_limits_and_says_so(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await planner.plan("max_turns=5", "max_tokens=100", "context_limit=1000", "eval_tasks=count-1,count-2")
    out = capsys.readouterr().out
    assert not planner.logs.exists(), "no run directory"
    assert not [kind for kind in ("open", "create", "sample", "images") if planner.recorder.kinds(kind)]
    assert found["scope"] == {
        "first_step": 0, "steps": 2, "training_places": 12, "evaluations": 3, "evaluation_places": 6,
    }  # fmt: skip
    assert found["forecast"]["sampled"] == {"low": 0, "high": 18 * 500}
    assert found["forecast"]["prompt"]["high"] == 18 * 5000 and found["forecast"]["trained"]["high"] == 12 * 1000
    assert "limits only: no earlier run" in out and "assumed: " in out and "run_name=probe" in out
    assert "http://here:1 answers" in out and "disk of the server" in out and "\x1b" not in out


async def test_a_plan_after_a_run_contains_what_the_next_one_takes(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("src.budget.dry_run.busy_share", lambda seconds: 0.1)
    split = ("eval_tasks=count-1", "allow_family_overlap=true")
    await planner.process("run_name=one", *split)
    capsys.readouterr()
    found = await planner.plan("seed=1", *split)
    assert "estimated from: 1 earlier run (one): 3 batches, 3 evaluations" in capsys.readouterr().out
    await planner.process("run_name=two", "seed=1", *split)
    low, high = tokens(found)
    assert low <= planner.spent("two") <= high < 3 * low
    assert found["forecast"]["trials"]["high"] >= found["forecast"]["trials"]["low"] == 3 * 6 + 3
    wall = found["forecast"]["wall_sec"]
    assert 0 < wall["low"] < wall["high"]
    monkeypatch.setattr("src.budget.dry_run.busy_share", lambda seconds: 0.9)
    busy = await planner.plan("seed=2", *split)
    assert any("this machine is busy" in note for note in busy["notes"])
    assert busy["forecast"]["wall_sec"]["high"] / busy["forecast"]["wall_sec"]["low"] > wall["high"] / wall["low"]


async def test_a_run_of_other_settings_or_tasks_and_a_damaged_one_say_nothing(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    await planner.process("run_name=other", "max_turns=7")
    await planner.process("run_name=damaged", "max_trials=7")
    ledger = planner.logs / "damaged" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("graded", "Graded", 1))
    found = await planner.plan()
    assert found["forecast"]["source"].startswith("limits only")
    assert "damaged is left out of the estimate" in caplog.text and "other is" not in caplog.text


async def test_a_stopped_run_is_planned_from_where_it_is_and_nothing_of_it_is_touched(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    await planner.process("run_name=run", "max_trials=13")
    before = files(planner.logs)
    capsys.readouterr()
    found = await planner.plan(f"resume={planner.logs / 'run'}", "max_trials=0", "max_tokens_total=1")
    out = " ".join(capsys.readouterr().out.split())
    assert found["scope"]["first_step"] >= 1 and found["scope"]["steps"] == 4 - found["scope"]["first_step"]
    assert found["scope"]["training_places"] < 6 * found["scope"]["steps"], "graded trials wait on disk"
    assert "continues" in out and "spent: " in out
    assert "max_tokens_total=1 is reached" in out and "it would stop at once" in out
    assert files(planner.logs) == before


async def test_a_server_that_is_not_there_is_told_and_no_mistake(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nobody(url: str, config: Config) -> dict[str, Any]:
        raise UserError(f"skyrl_tx_url={url}: connection refused")

    original = replace_the_outside
    with monkeypatch.context() as patched:
        original(patched, planner.recorder)
        patched.setattr(dry_run, "check_health", nobody)
        config = parse([*planner._base, "plan=true"])
        assert await session.train(config, Stop()) == 0
    assert "server: not asked, the run would be refused now: skyrl_tx_url=http://here:1" in capsys.readouterr().out


async def test_wrong_tasks_are_refused_by_a_plan_too(planner: Planner) -> None:
    with pytest.raises(UserError, match="eval_tasks"):
        await planner.process("plan=true", "eval_tasks=nothing")


async def test_a_plan_that_cannot_be_written_is_one_line(planner: Planner) -> None:
    with pytest.raises(UserError, match=r"json=.*name a file in a folder"):
        await planner.process("plan=true", f"json={planner.folder / 'none' / 'plan.json'}")


def test_dry_run_is_another_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    async def train(config: Config, stop: Stop) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr(session, "train", train)
    monkeypatch.setattr("src.cli.main.load_environment", lambda: None)
    assert train_main(["train", DRY_RUN, "model_name=m", "tasks_dir=."]) == 0
    assert train_main(["train", "model_name=m", "tasks_dir=.", "--plan=true"]) == 0
    assert [config.plan for config in seen] == [True, True]


def test_a_plan_is_not_saved_as_a_setting() -> None:
    assert SETTINGS["plan"].resume is SETTINGS["json"].resume is Resume.ADDRESS


def test_ranges_hold_about_what_they_say() -> None:
    """Of values of one law with a spread as assumed, at least 95 % of means of 4 lie inside; few values suffice."""
    random = np.random.default_rng(1)
    for n in (1, 3, 12):
        inside = 0
        for _ in range(400):
            values = random.normal(100, 15, n + 4)
            found = predict(values[:n].tolist(), 4, spread=0.15, least=0.0)
            inside += found.high is not None and found.low <= values[n:].mean() <= found.high
        assert inside >= 0.93 * 400, n


def test_more_values_make_a_narrower_range() -> None:
    def width(values: list[float], least: float = 0.0) -> float:
        found = predict(values, 5, spread=0.15, least=least)
        assert found.ratio is not None
        return found.ratio

    assert width([90.0, 110.0] * 10) < width([90.0, 110.0]) < width([100.0])
    assert width([100.0] * 50) < width([100.0] * 50, least=0.2) == pytest.approx(1.5)
    assert predict([1.0, 900.0], 1, spread=0.15, least=0.1).low >= 0.0
    with pytest.raises(ValueError):
        predict([], 1, spread=0.1, least=0.1)


def test_a_duration_has_a_range_by_factors_that_no_lucky_row_makes_narrow() -> None:
    one, many = predict_time([100.0], spread=0.25), predict_time([100.0] * 30, spread=0.25)
    for found in (one, many):
        assert found.high is not None and found.low * found.high == pytest.approx(100.0**2)
    assert one.ratio is not None and many.ratio is not None
    assert 5.5 > one.ratio > many.ratio > 1.3
    wild = predict_time([50.0, 100.0, 200.0, 400.0], spread=0.25)
    assert wild.ratio is not None and wild.ratio > 2 * one.ratio
    with pytest.raises(ValueError):
        predict_time([0.0], spread=0.25)


def test_a_cost_is_from_all_repeated_prompts_cached_to_none() -> None:
    range_ = Range(1e6, 2e6)
    found = Forecast(range_, range_, range_, range_, range_, Range(3600, 7200), cached=0.5, source="")
    assert found.usd(Tariff()) is None
    assert found.usd(Tariff(Price(10, 1, 1, 2))) == Range(6 + 2, 2 * 12)
    assert found.usd(Tariff(usd_per_hour=3.0)) == Range(3.0, 6.0)


def test_without_limits_there_is_no_bound() -> None:
    config = Config(model_name="m", tasks_dir=".", max_turns=0, trial_timeout_sec=0)
    found = from_limits(config, Scope(0, 2, 8, 0, 0))
    assert found.prompt.high is found.sampled.high is found.wall_sec.high is found.tokens.high is None
    assert found.usd(Tariff(Price(1, 1, 1, 1))) == Range(0.0, None)
