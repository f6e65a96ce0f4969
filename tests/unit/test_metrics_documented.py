"""docs/metrics.md lists what runs log: no metric without a line there, no line without a metric."""

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tinker
from harbor.models.trial.result import TimingInfo

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrajectoryGroup, Turn
from harbortrainer.rollout.fleet import Fleet
from harbortrainer.rollout.slots import Slots
from harbortrainer.run.by_host import HostCounts
from harbortrainer.run.metrics import Breakdown, agent_metrics, turn_metrics
from harbortrainer.sft.arguments import checked as sft_arguments
from harbortrainer.sft.session import run_sft
from harbortrainer.tasks.task import Task
from tests.support import recorded_run
from tests.support.conversations import conversation, write_conversations
from tests.support.small_settings import BASE, MORE, copy_tasks, write_prices
from tests.support.taxonomy import judge_file, write_taxonomy

PAGE = Path("docs/metrics.md")
RUNS = (
    ("eval_tasks=count-1,count-2", "kl_penalty_coef=0.1", "n_epochs=2", "prices=PRICES"),
    ("kl_penalty_coef=1", "advantage=none", "kl_reference=tinker://t/weights/state-9", "max_steps=1"),
    ("outcome_policy.completed=0",),
    ("eval_split=0.25", "max_steps=1"),
    ("observation_loss_coef=0.05", "loss_fn=dppo", "eval_split=0.25", "max_steps=1"),
    ("max_steps_off_policy=1", "oversample_max=1", "max_steps=2"),
)
TURN = Turn(0, (1,), (2,), (-0.5,), 0)
CALLED = {"tool_calls": 1.0, "tool_fallbacks": 0.0, "tool_bare": 0.0}
WITH_TOOLS = Trajectory("t", "n", (TURN,), 0.0, Outcome.COMPLETED, stats=CALLED)
IN_CONTAINER = Trajectory("t", "n", (), 0.0, Outcome.COMPLETED, stats={"wire_turns": 0.0})
TOLD = {"skyrl.ai/grad_norm": 1.0, "loss:sum": 0.5}  # by a server, after an optimizer step


def documented() -> list[str]:
    """Names and patterns, in the page's order."""
    return re.findall(r"^\| `([^`]+)`", PAGE.read_text(), re.MULTILINE)


def unlike(logged: Iterable[str], patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """(logged and not documented, documented and not logged)"""
    logged, patterns = set(logged), set(patterns)
    unknown = [name for name in logged if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    return sorted(unknown), sorted(p for p in patterns if not any(fnmatchcase(name, p) for name in logged))


def hosts_metrics() -> dict[str, float]:
    ended = {"host": "a", "trial": "n", "event": "ended", "fate": "graded", "reward": 1.0, "start_sec": 1.0}
    return Fleet(Slots(1), 1.0).metrics | HostCounts([ended]).metrics()


class Talkative(recorded_run.FakeServer):
    """Tells more about a step."""

    step = 0.0

    def optim_step(self, adam: tinker.AdamParams) -> recorded_run.Answer[Any]:
        self.step += 1
        answer = super().optim_step(adam)
        answer._value.metrics |= TOLD | {"skyrl.ai/optimizer_step": self.step}
        return answer


class Timed(recorded_run.FakeTrial):
    """With Harbor's times."""

    async def _act(self) -> Any:
        times = dict.fromkeys(("environment_setup", "agent_setup", "agent_execution", "verifier"), TimingInfo())
        return SimpleNamespace(**vars(await super()._act()) | times)


async def test_what_runs_log_is_what_is_documented(tmp_path: Path) -> None:
    logged: set[str] = set()
    tasks = ",".join(copy_tasks(tmp_path / name, names) for name, names in (("one", MORE[:2]), ("two", MORE[2:])))
    taxonomy = write_taxonomy(tmp_path / "taxonomy.json")
    shaped = (f"judge={judge_file(taxonomy=taxonomy)}", "max_steps=1")
    for number, besides in enumerate((*RUNS, shaped)):
        arguments = dict(argument.split("=", 1) for argument in (*BASE, *besides))
        arguments |= {"tasks_dir": tasks, "logs_dir": str(tmp_path / str(number))}
        arguments |= {"prices": write_prices(tmp_path / "prices.json")} if "prices" in arguments else {}
        words = [f"{field}={value}" for field, value in arguments.items()]
        await recorded_run.recorded_run(words, Talkative, trial=Timed)
        text = (tmp_path / str(number) / "run" / "metrics.jsonl").read_text()
        for row in map(json.loads, text.splitlines()):
            logged |= row.keys()
    data = write_conversations(tmp_path / "data.jsonl", [conversation(f"p{n}", "a") for n in range(4)])
    own = (f"logs_dir={tmp_path}", "run_name=sft", f"data={data}", "eval_split=0.5")
    words = [word for word in BASE if word.startswith(("backend", "skyrl", "model_name"))]
    args = sft_arguments([*words, *own])
    await run_sft(args.config, outside=recorded_run.fake_outside(recorded_run.Recorder()))
    for row in read_lines(tmp_path / "sft" / "metrics.jsonl"):
        logged |= row.keys()
    logged |= turn_metrics([WITH_TOOLS]).keys()  # no task of these runs has tools
    logged |= agent_metrics([IN_CONTAINER]).keys()
    logged |= hosts_metrics().keys()  # they run on this machine
    logged |= {"loss/margin"}  # of a user's function, which needs torch: tests/unit/test_own_loss.py
    floors = [Task(name, name, "", source=name, side="test", floor=0.5, clean=True) for name in ("a", "b")]
    groups, breakdown = [TrajectoryGroup(task.name, (WITH_TOOLS,)) for task in floors], Breakdown(floors)
    logged |= breakdown.batch(groups).keys() | breakdown.evaluation(groups).keys()
    undocumented, gone = unlike(logged - {"global_step"}, documented())
    assert not undocumented, f"logged, and not in {PAGE}"
    assert not gone, f"in {PAGE}, and logged by no run"


def test_no_name_in_the_source_is_undocumented() -> None:
    """Also those that are logged on rare occasions only."""
    groups = {name.split("/")[0] for name in documented()}
    files = [file for file in Path("src").rglob("*.py") if file.parts[1] not in ("report", "probe", "tasks")]
    literals = {name for file in files for name in re.findall(r'"([a-z]+/[a-z_]+)"', file.read_text())}
    named = {name for name in literals if name.split("/")[0] in groups}
    assert len(named) > 40 and unlike(named, documented())[0] == []


def test_every_metric_has_one_line_with_unit_and_meaning() -> None:
    names = documented()
    assert len(names) == len(set(names)) > 60
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 4 and cells[2], line


def test_the_comparison_sees_both_sides() -> None:
    assert unlike({"a/b", "c/x"}, {"a/b", "c/*"}) == ([], [])
    assert unlike({"a/b", "a/new"}, {"a/b", "c/*"}) == (["a/new"], ["c/*"])
