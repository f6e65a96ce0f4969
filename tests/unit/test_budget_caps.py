"""Each cap ends a run within one batch, with a checkpoint, a message and an exit status of its own; a resumed one too.

Real loop, trials, attempts and ledger; server, Docker and Harbor's trial are replaced.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.budget.budget import USD_STATUS
from harbortrainer.cli.arguments import validate
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.policy.tinker_llm import live_llm
from harbortrainer.stopping import Stop
from harbortrainer.train import parse
from tests.support import recorded_run
from tests.support.recorded_run import Recorder, fake_run

TASKS = ("count-1", "count-2", "create-1", "create-2")
BATCHES = 8


class Capped:
    """Processes of runs on one set of tasks."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self.said: list[str] = []
        for name in TASKS:
            shutil.copytree(Path("datasets/quickstart") / name, folder / "tasks" / name)
        price = {"models/one": {"prefill": 1000.0, "sample": 1000.0, "train": 1000.0}}
        (folder / "prices.json").write_text(json.dumps(price))
        self._base = (
            "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={folder / 'tasks'}",
            "batch_size=2", "group_size=2", f"n_epochs={BATCHES // 2}", "save_every=0", f"logs_dir={self.logs}",
            f"prices={folder / 'prices.json'}", "n_parallel_envs=2",
        )  # fmt: skip

    async def process(self, name: str, *arguments: str) -> int:
        """Exit status."""
        recorder, stop = Recorder(), Stop()
        config = parse([*self._base, f"run_name={name}", *arguments])
        validate(config)
        status = await fake_run(config, recorder, stop)
        self.said.append(stop.why)
        return status

    def lines(self, name: str, file: str) -> list[dict[str, Any]]:
        return read_lines(self.logs / name / file)

    def steps(self, name: str) -> int:
        return sum(record["event"] == "trained" for record in self.lines(name, "ledger.jsonl"))

    def started(self, name: str) -> list[str]:
        return [record["trial"] for record in self.lines(name, "ledger.jsonl") if record["event"] == "started"]


@pytest.fixture
def capped(tmp_path: Path) -> Capped:
    return Capped(tmp_path)


async def test_a_cap_ends_the_run_within_one_batch(capped: Capped) -> None:
    assert await capped.process("whole") == 0
    spent = [row["spend/usd"] for row in capped.lines("whole", "metrics.jsonl")]
    assert len(spent) == BATCHES and sorted(spent) == spent
    cap = spent[3] + 1e-6  # reached while the fifth batch is sampled
    assert await capped.process("run", f"max_usd={cap!r}") == USD_STATUS
    assert capped.steps("run") == 4
    assert [record["step"] for record in capped.lines("run", "checkpoints.jsonl")][-1] == 4, "what was trained is saved"
    assert capped.said[-1].startswith("max_usd=") and "is reached" in capped.said[-1]
    a_batch = max(b - a for a, b in zip([0.0, *spent], spent, strict=False))

    trials = capped.started("run")
    assert await capped.process("run", f"max_usd={cap!r}") == USD_STATUS, (
        "the next process knows what was spent before it"
    )
    assert capped.started("run") == trials and capped.steps("run") == 4, "and spends nothing more"

    assert await capped.process("run", "max_usd=0") == 0
    assert capped.steps("run") == BATCHES
    assert capped.lines("run", "metrics.jsonl")[-1]["spend/usd"] <= spent[-1] + a_batch


async def test_a_cancelled_trial_is_counted_with_what_it_said(capped: Capped, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial sampled a turn and hangs when another one ends and reaches the cap; all of a batch run at once."""
    said, act = asyncio.Event(), recorded_run.FakeTrial._act

    async def coordinated(trial: Any) -> Any:
        name = trial._config.agent.kwargs["llm_kwargs"]["name"]
        if not name.startswith("s000000-p00-g01"):
            await said.wait()
            return await act(trial)
        await live_llm(name).call("the task")
        said.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(recorded_run.FakeTrial, "_act", coordinated)
    assert await capped.process("run", "max_usd=1e-9", "n_parallel_envs=4") == USD_STATUS
    first = "s000000-p00-g01"
    (hung,) = [r for r in capped.lines("run", "ledger.jsonl") if r.get("fate") and r["trial"].startswith(first)]
    assert hung["fate"] == "cancelled" and hung["prompt_tokens"] > 0 and hung["sampled_tokens"] == 3


async def test_a_finished_run_says_what_it_spent_in_one_line(
    capped: Capped, capsys: pytest.CaptureFixture[str]
) -> None:
    await capped.process("run")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "spent:" in line]
    assert "tokens (" in line and "% trained" in line and "container hours" in line and line.endswith(" USD")
