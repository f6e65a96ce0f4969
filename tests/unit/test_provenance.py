"""What rewards came from: the file of a trial, the ledger's names, what spreads, and what the report shows of it."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName
from harbortrainer.report.run import read_run
from harbortrainer.report.write import write_report
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.provenance import MOST, NEWEST, RARE, Provenance
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from harbortrainer.venues.harbor.depends import MOST as MOST_OF_TRIAL
from harbortrainer.venues.harbor.depends import Depends, read_names, write
from tests.support import recorded_run
from tests.support.made_run import MadeRun
from tests.support.report_walk import Walk

WORK, HOOK = "/app/answer.txt", "/usr/lib/python3/sitecustomize.py"


def trial(number: int, *names: str, reward: float | None = 1.0, task: str = "t", known: bool = True) -> Trajectory:
    """The trial of a run in which each step has one group of four."""
    name = str(TrialName("step", number // 4, 0, number % 4))
    return Trajectory(task, name, (), reward, Outcome.COMPLETED, depends=names if known else None)


def kept(path: Path, *trials: Trajectory) -> Ledger:
    path.mkdir(exist_ok=True)
    ledger = Ledger(path / "ledger.jsonl")
    for one in trials:
        ledger.started(one.trial_name, one.task_name, 1)
        ledger.ended(one, "dropped" if one.reward is None else "graded")
    return ledger


def test_the_file_of_a_trial_has_both_kinds_sorted_cut_and_counted(tmp_path: Path) -> None:
    assert read_names(tmp_path) is None
    paths = [f"/app/{number:03}" for number in reversed(range(MOST_OF_TRIAL + 5))]
    depends = Depends.of(paths, ["tcp 8080 nginx", "process sleep", "tcp 8080 nginx"], watched=True)
    write(tmp_path, depends)
    found = json.loads((tmp_path / "depends.json").read_text())
    assert found["files"] == sorted(paths)[:MOST_OF_TRIAL] and found["services"] == ["process sleep", "tcp 8080 nginx"]
    assert (found["number"], found["watched"]) == (MOST_OF_TRIAL + 7, True)
    assert read_names(tmp_path) == (*found["files"], *found["services"])
    write(tmp_path, replace(depends, watched=False))
    assert read_names(tmp_path) is None


def test_a_trajectory_keeps_what_its_reward_came_from(tmp_path: Path) -> None:
    for one in (trial(0, WORK, "caf\udce9\n"), trial(1), trial(2, known=False)):
        assert read_trajectory(write_trajectory(tmp_path, one)) == one


def test_a_name_is_in_the_ledger_once_a_task_and_an_unrewarded_trial_has_none(tmp_path: Path) -> None:
    kept(
        tmp_path,
        trial(0, WORK),
        trial(1, HOOK, WORK),
        trial(2, WORK, task="u"),
        trial(3),
        trial(4, HOOK, reward=0.0),
        trial(5, HOOK, reward=None),
        trial(6, known=False),
        trial(7, HOOK),
    )
    ended = [line for line in read_lines(tmp_path / "ledger.jsonl") if line["event"] == "ended"]
    coded = [(line["depends"], line["new"]) if "depends" in line else None for line in ended]
    assert coded == [([0], [WORK]), ([1, 0], [HOOK]), ([0], [WORK]), ([], []), None, None, None, ([1], [])]
    found = Provenance(ended).sources
    assert {name.text: (name.first, name.trials) for name in found["t"].names.values()} == {
        WORK: ("s000000-p00-g00", 2),
        HOOK: ("s000000-p00-g01", 2),
    }
    assert (found["t"].rewarded, found["u"].rewarded) == (4, 1)


def spread_with(*had: bool) -> list[int]:
    """Numbers of the trials with which HOOK spread. `had`: whether each rewarded trial had it, in order."""
    provenance = Provenance()
    for number, one in enumerate(had):
        ended = trial(number, WORK, *([HOOK] if one else []))
        provenance.count({"task": "t", "trial": ended.trial_name, **provenance.told(ended)})
    names = provenance.sources["t"].names.values()
    assert not next(name for name in names if name.text == WORK).spread, "it was there from the start"
    spread = {name.spread for name in names}
    return [number for number in range(len(had)) if trial(number).trial_name in spread]


HALF = NEWEST // 2


@pytest.mark.parametrize(
    ("had", "with_"),
    [
        ([False] * NEWEST * 2 + [True] * HALF, NEWEST * 2 + HALF - 1),
        ([False] * NEWEST * 2 + [True, False] * HALF, NEWEST * 2 + 2 * HALF - 2),
        ([False] * NEWEST + [True] * NEWEST, 2 * NEWEST - 1),
        ([False] * (NEWEST - 1) + [True] * NEWEST, None),  # too short a past
        ([False] * NEWEST * 2 + [True] * (HALF - 1) + [False] * NEWEST, None),  # it did not spread
        ([False] * RARE + [True] + [False] * RARE + [True] * HALF, 2 * RARE + HALF),  # one was no habit
        ([False] * RARE + [True] * 3 + [False] * RARE + [True] * NEWEST, None),
        ([True, False] * NEWEST + [True] * NEWEST, None),  # half had it from the start
    ],
)
def test_what_is_new_spreads_when_half_of_the_newest_rewards_came_from_it(had: list[bool], with_: int | None) -> None:
    assert spread_with(*had) == ([] if with_ is None else [with_])


def test_a_spread_is_one_line_also_over_a_kill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others = [f"/tmp/\x1b[2J\n{number}" for number in range(3)]
    trials = [trial(number, WORK, *([HOOK, *others] if number >= 20 else [])) for number in range(40)]
    kept(tmp_path, *trials[:22])
    assert caplog.messages == []
    for first in range(22, 40, 6):
        kept(tmp_path, *trials[first : first + 6])
    (line,) = caplog.messages
    assert f"task t: half of its newest {NEWEST} rewards came from {HOOK}, " in line
    assert "/tmp/\\x1b[2J\\n1 and 1 more" in line and "\x1b" not in line and "\n" not in line
    assert "first in s000005-p00-g00" in line


def test_a_trial_that_a_kill_left_between_its_files_is_counted(tmp_path: Path) -> None:
    ledger = kept(tmp_path, trial(0, WORK))
    lost = trial(1, WORK, HOOK)
    ledger.started(lost.trial_name, "t", 1)
    write_trajectory(tmp_path / "trajectories" / "step_000000", lost)
    Ledger(tmp_path / "ledger.jsonl")
    assert read_lines(tmp_path / "ledger.jsonl")[-1]["new"] == [HOOK]


def test_the_memory_is_bounded_and_keeps_what_is_usual_and_what_is_new() -> None:
    """Each trial has 100 names of its own."""
    provenance, letters = Provenance(), random.Random(0)
    records, own = [], list[str]()
    for number in range(60):
        own = [f"/tmp/{letters.random()}" for _ in range(100)]
        ended = trial(number, WORK, *own, *([HOOK] if number >= 50 else []))
        records.append({"task": "t", "trial": ended.trial_name, **provenance.told(ended)})
        provenance.count(records[-1])
    source = provenance.sources["t"]
    assert len(source.names) == MOST and sum(map(bool, source.texts)) == MOST
    assert source.names[WORK].trials == 60 and source.names[HOOK].spread == trial(53).trial_name
    assert own[-1] in source.names
    assert Provenance(records).sources == provenance.sources


class HookedTrial(recorded_run.FakeTrial):
    """Its verification opens the work, and from step 3 on a hook. Member 0 earns nothing, 1 was not watched."""

    async def _act(self) -> Any:
        result = await super()._act()
        name = TrialName.parse(self._config.trial_name)
        result.exception_info = None
        result.verifier_result.rewards["reward"] = float(name.member > 0)
        folder = self._config.trials_dir / self._config.trial_name
        folder.mkdir(parents=True)
        files = [WORK, *([HOOK] if name.step >= 3 else [])]
        write(folder, Depends.of(files, ["tcp 80 nginx"], watched=name.member != 1))
        return result


async def test_a_run_keeps_what_its_trials_depended_on_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {
        "backend": "skyrl-tx", "skyrl_tx_url": "http://here:1", "model_name": "models/one", "batch_size": 1,
        "tasks_dir": "datasets/quickstart", "tasks_include": "count-1", "group_size": 8, "logs_dir": tmp_path,
        "run_name": "run",
    }  # fmt: skip
    for epochs in (4, 5):
        given = [f"{name}={value}" for name, value in (words | {"n_epochs": epochs}).items()]
        await recorded_run.recorded_run(given, trial=HookedTrial)
    (source,) = Provenance(read_lines(tmp_path / "run" / "ledger.jsonl")).sources.values()
    assert source.rewarded == 5 * 6, "of five groups of eight"
    assert {name.text: name.trials for name in source.names.values()} == {WORK: 30, "tcp 80 nginx": 30, HOOK: 12}
    (line,) = [line for line in caplog.messages if "rewards came from" in line]
    assert line.startswith("task count-1: ") and HOOK in line and WORK not in line


def test_the_report_has_what_the_rewards_of_each_task_came_from(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=1, group=2, turns=1)
    made.train(0)
    bare = walked(write_report(made.path))["sections"]["tasks"]
    assert "What rewards came from" not in bare
    files = [f"/app/part{number}" for number in range(6)]
    for number in range(4, 60):
        new = [HOOK, "/tmp/\x1b[31m"] if number >= 40 else []
        made.ledger.ended(trial(number, *(files if number % 2 else files[:1]), *new, f"/tmp/{number}"), "graded")
    rows = read_run(made.path).shown["sources"]
    shown = [(row["names"], row["trials"], row["rewarded"], row["first"], row["spread"]) for row in rows]
    once = [f"/tmp/{number}" for number in range(59, 3, -1)]
    assert shown == [
        (once, 1, 56, 15, None),
        ([HOOK, "/tmp/\\x1b[31m"], 20, 56, 11, 11),
        (files[:1], 56, 56, 2, None),
        (files[1:], 28, 56, 2, None),
    ]
    text = walked(write_report(made.path))["sections"]["tasks"]
    assert "What rewards came from" in text and f"{HOOK}/tmp/\\x1b[31m20 of 561111" in text
    assert "/tmp/59 and 55 more" in text and "/app/part1 and 4 more" in text
