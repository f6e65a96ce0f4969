"""The examples: the loop with the fakes of whole runs, the others from a package outside the tree."""

import ast
import json
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import chz
import pytest
import tinker

from examples.loop import datums, loop
from harbortrainer import Config, UserError, continued
from harbortrainer.learning.trajectory import group_trajectories
from harbortrainer.run.trajectories import read_batch
from harbortrainer.training.session import run_training
from tests.conftest import ROOT
from tests.support.made_trials import trial
from tests.support.plugin_caches import forget
from tests.support.recorded_run import FakeServer, Recorder, fake_outside
from tests.support.small_settings import copy_tasks, needs_torch


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.name)
def test_an_example_takes_each_name_from_the_module_that_defines_it(file: Path) -> None:
    """Pyright, strict, refuses another one in a package of the user's (reportPrivateImportUsage)."""
    taken = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in (one for one in taken if (one.module or "").startswith("harbortrainer.")):
        for name in (alias.name for alias in node.names):
            assert getattr(getattr(import_module(str(node.module)), name), "__module__", node.module) == node.module, (
                name
            )


def config(folder: Path) -> Config:
    tasks = copy_tasks(folder / "tasks", ("count-1", "create-1", "copy-1"))
    return Config(
        backend="skyrl-tx", skyrl_tx_url="http://here:1", model_name="models/one", tasks_dir=tasks, max_steps=3,
        logs_dir=str(folder), batch_size=2, group_size=4, eval_tasks=("copy-1",), allow_family_overlap=True,
    )  # fmt: skip


async def test_the_loop_samples_updates_publishes_and_evaluates(tmp_path: Path) -> None:
    recorder = Recorder()
    rewards = await loop(config(tmp_path), fake_outside(recorder))
    assert rewards == pytest.approx([4.25 / 7, 5.25 / 8, 5.25 / 8])  # a trial of the first step gets no grade
    kinds = [len(recorder.kinds(kind)) for kind in ("forward_backward", "optim_step", "save_state")]
    assert kinds == [3, 3, 1]
    trials = [event["config"]["trial_name"] for event in recorder.kinds("trial")]
    assert sum(name.startswith("e") for name in trials) == 2
    first, *_ = (sum(map(abs, datum["advantages"])) for datum in recorder.kinds("datum"))
    assert 0 < first < 1  # a share of the mean over all sampled tokens


def test_the_loops_advantages_are_those_of_grpo() -> None:
    (one, *_), *others = [datums(group_trajectories("task", [trial(0, 1.0), trial(1, 0.0)])), []]
    assert set(one.advantages_T[one.mask_T]) == {1.0} and others == [[]]
    assert datums(group_trajectories("task", [trial(0, 1.0), trial(1, 1.0)])) == []


async def test_the_loop_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="eval_tasks: no task named 'nowhere'"):
        await loop(chz.replace(config(tmp_path), eval_tasks=("nowhere",)), fake_outside(Recorder()))


ENTRIES = """
[harbortrainer.venues]
guess = researcher.guess:VENUE
[harbortrainer.agents]
one-shot = researcher.agent:OneShot
"""


@pytest.fixture
def researcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples as an installed package of somebody else."""
    package, info = tmp_path / "site" / "researcher", tmp_path / "site" / "researcher-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").touch()
    for file in ("advantage.py", "reward.py", "dpo.py", "agent.py", "guess.py"):
        shutil.copy(ROOT / "examples" / file, package)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: researcher\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(package.parent))
    forget()
    yield package
    for name in [name for name in sys.modules if name.startswith("researcher")]:
        del sys.modules[name]
    forget()


class Guessing(FakeServer):
    """Answers with a digit, which the request's seed decides: ids of the byte tokenizer begin at "!"."""

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams) -> Any:
        answer = super().sample(prompt, num_samples, sampling_params)
        assert sampling_params.seed is not None
        answer._value.sequences[0].tokens[:] = [ord("1") - 33 + sampling_params.seed % 9, 65, 65]
        return answer


def playing(folder: Path, **values: Any) -> Config:
    return Config(
        backend="skyrl-tx", skyrl_tx_url="http://here:1", model_name="models/one", tasks_dir="guess:9",
        logs_dir=str(folder), run_name="run", batch_size=3, group_size=4, max_turns=3, eval_split=0.3, max_steps=2,
        advantage="researcher.advantage:against_the_best", reward="researcher.reward:short", **values,
    )  # fmt: skip


async def played(config: Config) -> Path:
    recorder = Recorder()
    outside = fake_outside(recorder, Guessing(recorder))
    assert await run_training(config, None, outside) == 0
    return Path(config.logs_dir) / "run"


async def test_an_environment_an_advantage_and_a_reward_of_another_package(researcher: Path, tmp_path: Path) -> None:
    run = await played(playing(tmp_path))
    trials = read_batch(run / "trajectories" / "step_000000")
    assert len(trials) == 12 and {one.outcome for one in trials.values()} <= {"completed", "max_turns"}
    won = [one for one in trials.values() if one.reward == 1.0]
    assert 0 < len(won) < 12 and all(len(one.turns) == 3 for one in trials.values() if one.reward != 1.0)
    assert all(one.shaping == {"reward": pytest.approx(-0.01 * len(one.turns))} for one in trials.values())
    noted = json.loads((run / "effective.json").read_text())["brought"]
    assert set(noted) == {"advantage", "reward", "tasks_dir=guess"}
    assert all(source.startswith("researcher 1.0 sha256:") for source in noted.values())
    (researcher / "more.py").write_text("changed = True")
    forget()
    with pytest.raises(UserError, match=r"its code has changed since the run began .*start a new run"):
        await run_training(continued(run, max_steps=3), None, fake_outside(Recorder()))


@needs_torch
async def test_a_loss_of_another_package(researcher: Path, tmp_path: Path) -> None:
    run = await played(playing(tmp_path, loss="researcher.dpo:dpo"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss/pairs"] > 0


async def test_an_error_in_an_environment_ends_the_run_as_it_is(researcher: Path, tmp_path: Path) -> None:
    text = (researcher / "guess.py").read_text()
    (researcher / "guess.py").write_text(
        text.replace("most, secret = map(int, ref.split())", "most, secret = 1 / 0, 1")
    )
    with pytest.raises(ZeroDivisionError):
        await played(playing(tmp_path))
