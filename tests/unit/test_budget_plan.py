"""`--dry-run`: the mean of earlier runs, bounds without one, nothing spent and nothing written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer import planning
from harbortrainer.backend.connect import Api
from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import Price, Pricing
from harbortrainer.cli.main import main
from harbortrainer.config import Config, ServerSettings
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import TrialName
from harbortrainer.planning import Forecast, PastBatch, RemainingWork, from_limits, from_past
from harbortrainer.run.ledger import KILLED
from harbortrainer.text import counted
from harbortrainer.train import checked
from tests.support.recorded_run import Recorder, fake_outside, fake_run
from tests.support.small_settings import write_prices

TASKS = ("count-1", "count-2", "create-1", "create-2")


class Planner:
    """Runs and plans on one set of tasks; server, Docker and Harbor's trial are replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        self.recorder = Recorder()
        for name in TASKS:
            shutil.copytree(Path("datasets/quickstart") / name, folder / "tasks" / name)
        self._base = (
            "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={folder / 'tasks'}",
            "batch_size=2", "group_size=3", "n_epochs=2", f"logs_dir={self.logs}",
        )  # fmt: skip

    async def process(self, *arguments: str) -> int:
        self.recorder = Recorder()
        args = checked([*self._base, *arguments])
        if args.dry_run:
            return await planning.dry_run(args.config, args.json, fake_outside(self.recorder))
        return await fake_run(args.config, self.recorder)

    async def plan(self, *arguments: str) -> dict[str, Any]:
        file = self.folder / "plan.json"
        assert await self.process("--dry-run", f"json={file}", *arguments) == 0
        return json.loads(file.read_text())

    def spent(self, name: str) -> float:
        return read_lines(self.logs / name / "metrics.jsonl")[-1]["spend/tokens"]


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(tmp_path)


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
        "containers": True,
    }  # fmt: skip
    assert found["forecast"]["sampled"] == 18 * 500
    assert found["forecast"]["trained"] == 12 * 1000
    assert found["forecast"]["prompt"] == 18 * 5000 + 12 * 1000, "the start scores at most 8 datums: all of 6"
    assert "limits only: no earlier run" in out and "at most" in out and "assumed: " in out and "run_name=probe" in out
    assert "http://here:1 answers" in out and "\x1b" not in out


async def test_a_plan_after_a_run_has_the_mean_of_its_batches(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    split = ("eval_tasks=count-1", "allow_family_overlap=true")
    await planner.process("run_name=one", *split)
    capsys.readouterr()
    found = await planner.plan("seed=1", *split)
    out = capsys.readouterr().out
    assert "estimated from: 1 earlier run (one): 3 batches, 3 evaluations" in out and "assumed" not in out
    await planner.process("run_name=two", "seed=1", *split)
    forecast = found["forecast"]
    spent = planner.spent("two")
    assert sum(forecast[kind] for kind in ("prompt", "sampled", "trained")) == pytest.approx(spent, rel=0.1)
    assert forecast["container_sec"] > 0 and forecast["wall_sec"] > 0
    assert forecast["trials"] == pytest.approx(3 * 6 + 3 + 2), "two were run again"


def test_an_estimate_is_the_mean_of_batches_a_place() -> None:
    def batch(tokens: float, places: int = 2, evaluation: bool = False) -> PastBatch:
        spent = Spending(tokens, tokens, 0.0 if evaluation else tokens, tokens)
        return PastBatch(evaluation, places, places, spent, seconds=tokens)

    config = Config(model_name="m", tasks_dir=".")
    runs = {"one": [batch(100), batch(300)], "two": [batch(1200, places=4), batch(60, evaluation=True)]}
    found = from_past(config, RemainingWork(0, 5, 10, 1, 4), runs)
    assert found is not None and found.trained == pytest.approx(10 * (50 + 150 + 300) / 3)
    assert found.sampled == found.wall_sec == pytest.approx((found.trained or 0) + 120)
    assert found.trials == 14
    assert from_past(config, RemainingWork(0, 5, 10, 0, 0), {"one": [batch(60, evaluation=True)]}) is None
    assert from_past(config, RemainingWork(0, 5, 10, 0, 0), {}) is None


def test_the_time_until_a_killed_run_is_continued_is_no_container_time() -> None:
    names = [str(TrialName("step", 0, 0, member)) for member in range(2)]
    records: list[dict[str, Any]] = [{"event": "started", "trial": name, "time": 0.0} for name in names]
    usual = {"event": "ended", "prompt_tokens": 0, "sampled_tokens": 0, "cause": "", "fate": "graded"}
    records.append(usual | {"trial": names[0], "time": 60.0})
    records.append(usual | {"trial": names[1], "time": 1e6, "cause": KILLED})
    assert planning._batch(records, False, 0.0, 1.0).spent.container_sec == 120


async def test_a_run_of_other_settings_or_tasks_and_a_damaged_one_say_nothing(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    await planner.process("run_name=other", "max_turns=7")
    await planner.process("run_name=damaged", "max_trials=7")
    ledger = planner.logs / "damaged" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("graded", "Graded", 1))
    (planner.logs / "of-another-program").mkdir()
    (planner.logs / "of-another-program" / "config.json").write_text("[]")
    found = await planner.plan()
    assert found["forecast"]["source"].startswith("limits only")
    assert "damaged is left out of the estimate" in caplog.text and "other is" not in caplog.text
    assert "of-another-program is left out of the estimate" in caplog.text


async def test_a_stopped_run_is_planned_from_where_it_is_and_nothing_of_it_is_touched(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    await planner.process("run_name=run", "max_trials=13")
    before = files(planner.logs)
    capsys.readouterr()
    prices = write_prices(planner.logs.parent / "prices.json")
    found = await planner.plan(f"resume={planner.logs / 'run'}", "max_trials=0", "max_usd=1e-9", f"prices={prices}")
    out = " ".join(capsys.readouterr().out.split())
    assert found["scope"]["first_step"] >= 1 and found["scope"]["steps"] == 4 - found["scope"]["first_step"]
    assert found["scope"]["training_places"] < 6 * found["scope"]["steps"], "graded trials wait on disk"
    assert "continues" in out and "spent: " in out
    assert "max_usd=1e-09 is reached" in out and "the run would stop at once" in out
    assert files(planner.logs) == before


async def test_a_server_that_is_not_there_is_told_and_no_mistake(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    class Nobody(Api):
        async def check_health(self, url: str, config: ServerSettings) -> dict[str, Any]:
            raise UserError(f"skyrl_tx_url={url}: connection refused")

    outside = replace(fake_outside(planner.recorder), api=Nobody())
    assert await planning.dry_run(checked(planner._base).config, outside=outside) == 0
    assert "server: not asked, the run would be refused now: skyrl_tx_url=http://here:1" in capsys.readouterr().out


async def test_wrong_tasks_are_refused_by_a_plan_too(planner: Planner) -> None:
    with pytest.raises(UserError, match="eval_tasks"):
        await planner.process("--dry-run", "eval_tasks=nothing")


async def test_a_plan_that_cannot_be_written_is_one_line(planner: Planner) -> None:
    with pytest.raises(UserError, match=r"json=.*name a file in a folder"):
        await planner.process("--dry-run", f"json={planner.folder / 'none' / 'plan.json'}")


def test_a_dry_run_is_an_argument_of_the_command_and_no_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Config, str | None]] = []

    async def plan(config: Config, json_file: str | None) -> int:
        seen.append((config, json_file))
        return 0

    monkeypatch.setattr(planning, "dry_run", plan)
    monkeypatch.setattr("harbortrainer.cli.main.load_environment", lambda: None)
    run = ["train", "model_name=m", "tasks_dir=."]
    assert main([*run, "--dry-run"]) == main([*run, "dry_run=true", "--json"]) == 0
    assert seen == [(Config(model_name="m", tasks_dir="."), None), (Config(model_name="m", tasks_dir="."), "-")]
    assert main([*run, "json=f"]) == 2 and "add --dry-run" in capsys.readouterr().err


def test_a_cost_is_of_tokens_and_hours() -> None:
    found = Forecast(1, 1e6, 1e6, 1e6, 3600, 3600, source="")
    assert found.usd(Pricing()) is None
    assert found.usd(Pricing(Price(10, 1, 1))) == 12
    assert found.usd(Pricing(usd_per_hour=3.0)) == 3.0
    assert found.usd(Pricing(Price(10, 1, 1), usd_per_hour=3.0)) == 15


def test_a_user_is_in_the_bounds_and_in_what_earlier_batches_took() -> None:
    settings: dict[str, Any] = {"max_turns": 10, "context_limit": 1000, "max_tokens": 100}
    work = RemainingWork(0, 2, 8, 0, 0)
    alone = from_limits(Config(model_name="m", tasks_dir=".", **settings), work)
    with_user = from_limits(Config(model_name="m", tasks_dir=".", user="base", **settings), work)
    prompt, said = with_user.beside["user"]
    assert (prompt, said) == (8 * 10 * 1000, 8 * 10 * 1024) and not alone.beside
    assert with_user.tokens == (alone.tokens or 0) + 8 * 10 * 2024
    spent = Spending(100, 10, 60, 5, user_prompt=40, user_sampled=4)
    past = from_past(Config(model_name="m", tasks_dir="."), work, {"r": [PastBatch(False, 2, 2, spent, 9.0)]})
    assert past is not None and past.beside["user"] == (160, 16)
    pricing = Pricing(Price(0, 0, 0), beside={"user": Price(1e6, 1e6, 1e6)})
    assert past.usd(pricing) == 176


@pytest.mark.parametrize(
    ("number", "things", "words"),
    [(1, "steps", "1 step"), (2, "steps", "2 steps"), (0, "tasks", "0 tasks"), (1, "batches", "1 batch")],
)
def test_one_thing_is_no_plural(number: int, things: str, words: str) -> None:
    assert counted(number, things) == words


def test_without_limits_there_is_no_bound() -> None:
    config = Config(model_name="m", tasks_dir=".", max_turns=0, trial_timeout_sec=0)
    found = from_limits(config, RemainingWork(0, 2, 8, 0, 0))
    assert found.prompt is found.sampled is found.wall_sec is found.tokens is None
    assert found.usd(Pricing(Price(1, 1, 1))) is None and found.usd(Pricing(usd_per_hour=1.0)) is None
    talks = from_limits(config, RemainingWork(0, 2, 8, 0, 0, containers=False))
    assert talks.container_sec == 0 and talks.wall_sec == found.wall_sec
