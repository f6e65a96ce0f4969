"""`--dry-run`: the mean of earlier runs, bounds without one, nothing spent and nothing written. Caps that end a run.

Real loop, trials, attempts and ledger; server, Docker and Harbor's trial are replaced.
"""

import asyncio
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tinker

from harbortrainer import planning
from harbortrainer.backend.connect import Api
from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import USD_STATUS, Price, Pricing
from harbortrainer.config import Config, ServerSettings
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import UserError
from harbortrainer.planning import PastBatch, RemainingWork, from_limits, from_past
from harbortrainer.stopping import Stop
from harbortrainer.train import checked
from tests.support.fakes import byte_tokenizer, let_others_act
from tests.support.recorded_run import FakeServer, Recorder, fake_outside, fake_run
from tests.support.small_settings import write_prices

TASKS = ("count-1", "count-2", "create-1", "create-2")
BATCHES = 8


class Planner:
    """Runs and plans on one set of tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        self.recorder, self.said = Recorder(), ""
        for name in TASKS:
            shutil.copytree(Path("datasets/quickstart") / name, folder / "tasks" / name)
        self._base = (
            "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={folder / 'tasks'}",
            "batch_size=2", "group_size=3", "n_epochs=2", f"logs_dir={self.logs}",
        )  # fmt: skip

    async def process(self, *arguments: str, server: type[FakeServer] = FakeServer) -> int:
        """Exit status; `said`: why the run was stopped."""
        self.recorder, stop = Recorder(), Stop()
        args = checked([*self._base, *arguments])
        if args.dry_run:
            return await planning.dry_run(args.config, args.json, fake_outside(self.recorder))
        status = await fake_run(args.config, self.recorder, stop, server=server(self.recorder))
        self.said = stop.why
        return status

    async def plan(self, *arguments: str) -> dict[str, Any]:
        file = self.folder / "plan.json"
        assert await self.process("--dry-run", f"json={file}", *arguments) == 0
        return json.loads(file.read_text())

    def lines(self, name: str, file: str = "ledger") -> list[dict[str, Any]]:
        return read_lines(self.logs / name / f"{file}.jsonl")


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
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "spent:" in line]
    assert "tokens (" in line and "% trained" in line and line.endswith("container hours"), "of a run that is over"
    found = await planner.plan("seed=1", *split)
    out = capsys.readouterr().out
    assert "estimated from: 1 earlier run (one): 3 batches, 3 evaluations" in out and "assumed" not in out
    await planner.process("run_name=two", "seed=1", *split)
    forecast = found["forecast"]
    spent = planner.lines("two", "metrics")[-1]["spend/tokens"]
    assert sum(forecast[kind] for kind in ("prompt", "sampled", "trained")) == pytest.approx(spent, rel=0.1)
    assert forecast["container_sec"] > 0 and forecast["wall_sec"] > 0
    assert forecast["trials"] == pytest.approx(3 * 6 + 3 + 2), "two were run again"


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


def test_a_dry_run_is_an_argument_of_the_command_and_no_setting() -> None:
    run = ["model_name=m", "tasks_dir=."]
    one, other = checked([*run, "--dry-run"]), checked([*run, "dry_run=true", "--json"])
    assert one.dry_run and other.dry_run and (one.json, other.json) == (None, "-")
    assert one.config == other.config == Config(model_name="m", tasks_dir=".")
    with pytest.raises(UserError, match="add --dry-run"):
        checked([*run, "json=f"])


def test_a_user_is_in_the_bounds_and_in_what_earlier_batches_took() -> None:
    settings: dict[str, Any] = {"max_turns": 10, "context_limit": 1000, "max_tokens": 100}
    work = RemainingWork(0, 2, 8, 0, 0)
    alone = from_limits(Config(model_name="m", tasks_dir=".", **settings), work)
    with_user = from_limits(Config(model_name="m", tasks_dir=".", user="base", **settings), work)
    assert with_user.beside("user") == (8 * 10 * 1000, 8 * 10 * 1024) and alone.beside("user") == (0, 0)
    assert with_user.tokens == alone.tokens + 8 * 10 * 2024
    spent = Spending(100, 10, 60, 5, user_prompt=40, user_sampled=4)
    past = from_past(Config(model_name="m", tasks_dir="."), work, {"r": [PastBatch(False, 2, 2, spent, 9.0)]})
    assert past is not None and past.beside("user") == (160, 16)
    pricing = Pricing(Price(0, 0, 0), beside={"user": Price(1e6, 1e6, 1e6)})
    assert past.usd(pricing) == 176


def test_without_limits_there_is_no_bound() -> None:
    config = Config(model_name="m", tasks_dir=".", max_turns=0, trial_timeout_sec=0)
    found = from_limits(config, RemainingWork(0, 2, 8, 0, 0))
    assert found.prompt == found.sampled == found.wall_sec == found.tokens == math.inf
    assert found.usd(Pricing(Price(1, 1, 1))) is None and found.usd(Pricing(usd_per_hour=1.0)) is None
    talks = from_limits(config, RemainingWork(0, 2, 8, 0, 0, containers=False))
    assert talks.container_sec == 0 and talks.wall_sec == found.wall_sec


@pytest.fixture
def capped(planner: Planner) -> tuple[str, ...]:
    """Settings of a run whose tokens have a price."""
    price = {"models/one": {"prefill": 1000.0, "sample": 1000.0, "train": 1000.0}}
    (planner.folder / "prices.json").write_text(json.dumps(price))
    return "group_size=2", f"n_epochs={BATCHES // 2}", "save_every=0", f"prices={planner.folder / 'prices.json'}"


async def test_a_cap_ends_the_run_within_one_batch(planner: Planner, capped: tuple[str, ...]) -> None:
    def events(event: str) -> list[Any]:
        return [record for record in planner.lines("run") if record["event"] == event]

    small = (*capped, "n_parallel_envs=2")
    assert await planner.process("run_name=whole", *small) == 0
    spent = [row["spend/usd"] for row in planner.lines("whole", "metrics")]
    assert len(spent) == BATCHES and sorted(spent) == spent
    cap = spent[3] + 1e-6  # reached while the fifth batch is sampled
    assert await planner.process("run_name=run", *small, f"max_usd={cap!r}") == USD_STATUS
    assert len(events("trained")) == 4 == planner.lines("run", "checkpoints")[-1]["step"], "what was trained is saved"
    assert planner.said.startswith("max_usd=") and "is reached" in planner.said
    trials = events("started")
    assert await planner.process("run_name=run", *small, f"max_usd={cap!r}") == USD_STATUS, "it knows what was spent"
    assert events("started") == trials and len(events("trained")) == 4, "and spends nothing more"
    assert await planner.process("run_name=run", *small, "max_usd=0") == 0
    a_batch = max(b - a for a, b in zip([0.0, *spent], spent, strict=False))
    assert len(events("trained")) == BATCHES
    assert planner.lines("run", "metrics")[-1]["spend/usd"] <= spent[-1] + a_batch


async def test_a_cancelled_trial_is_counted_with_what_it_said(planner: Planner, capped: tuple[str, ...]) -> None:
    """The second members sampled a turn and hang when a first one ends and reaches the cap; all run at once."""
    said = list[asyncio.Event]()

    class Hangs(FakeServer):
        async def sample(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, prompt: tinker.ModelInput, *given: Any, **named: Any
        ) -> Any:
            text = byte_tokenizer(None).decode(prompt.to_ints())
            if "member 1" in text:
                said.append(event := asyncio.Event())
                await event.wait()
            while "member 0" in text and len(said) < 2:
                await let_others_act()
            return await super().sample(prompt, *given, **named)

    given = ("run_name=run", *capped, "max_usd=1e-9", "n_parallel_envs=4")
    assert await planner.process(*given, server=Hangs) == USD_STATUS
    first = "s000000-p00-g01"
    (hung,) = [one for one in planner.lines("run") if one.get("fate") and one["trial"].startswith(first)]
    assert hung["fate"] == "cancelled" and hung["prompt_tokens"] > 0 and hung["sampled_tokens"] == 3
