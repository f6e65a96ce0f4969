"""A run directory of any size without a server: the files that a run leaves, with numbers that are made up."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from harbortrainer.config import Config
from harbortrainer.durable.jsonl import append_line
from harbortrainer.learning.batch import assemble
from harbortrainer.learning.datums import trainer_log_ratios
from harbortrainer.learning.trajectory import (
    BatchKind,
    Outcome,
    Trajectory,
    TrialName,
    Turn,
    batch_name,
    group_trajectories,
)
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.metrics import batch_metrics, eval_metrics
from harbortrainer.run.trajectories import write_log_ratios, write_trajectory

BEGAN = 1_760_000_000.0
TRIAL_SEC = 22.0
SPENT = {"": 10, "_trained": 6, "_constant": 2, "_left_out": 0, "_failed": 1, "_cancelled": 0, "_evaluation": 1}
INSTRUCTION = "You are an AI assistant that solves tasks in a terminal. " * 60


class _DatedLedger(Ledger):
    """Its lines have the time of `clock`."""

    clock = BEGAN

    def _append(self, record: dict[str, Any], **how: Any) -> None:
        super()._append({"time": self.clock, **record}, **how)


class MadeRun:
    """Writes step after step; `text`: what the agent says, to try what a policy might."""

    hosts: Sequence[str] = ()  # that run the members of a group in turn

    def __init__(self, path: Path, tasks: int, group: int, turns: int, text: str = "ls -la\n", words: int = 40) -> None:
        self.path, self.text = path, text
        self._tasks, self._group, self._turns, self._words = tasks, group, turns, words
        self._random = random.Random(0)
        path.mkdir(parents=True)
        self.config = Config(model_name="models/quickstart", tasks_dir="datasets/quickstart", batch_size=tasks)
        (path / "config.json").write_text(json.dumps({"model_name": "models/quickstart", "learning_rate": 1e-4}))
        (path / "effective.json").write_text(json.dumps({"loss": {"name": "importance_sampling"}}))
        self.ledger = _DatedLedger(path / "ledger.jsonl")

    def train(self, step: int, evaluate: bool = False) -> dict[str, float]:
        """One batch, its update, an evaluation after it, and its row."""
        groups = self._batch("step", step)
        batch = assemble(groups, self.config)
        self.ledger.trained(step, batch, [[s.trial_name for s in batch.sequences_D]] if batch.sequences_D else [])
        noisy_D = [s.logprobs_T + self._noise(len(s.logprobs_T)) for s in batch.sequences_D]
        write_log_ratios(self.path, step, trainer_log_ratios(batch.sequences_D, noisy_D))
        row = batch_metrics(groups) | batch.metrics | self.ledger.metrics()
        row |= {"time/sample": 40 + 5 * self._random.random(), "time/update": 12.0, "time/publish": 1.5}
        row |= {"time/step": 1 + sum(row[f"time/{part}"] for part in ("sample", "update", "publish"))}
        row |= {
            "optim/learning_rate": 1e-4,
            "optim/grad_norm": self._random.random(),
            "util/requests_in_flight": 5.0,
            "util/agents_at_work": 7.0,
        }
        row |= {f"spend/tokens{part}": 1e4 * (step + 1) * n for part, n in SPENT.items()}
        row |= {f"spend/container_sec{part}": 600.0 * (step + 1) * n for part, n in SPENT.items()}
        row |= self._evaluation(step + 1) if evaluate else {}
        append_line(self.path / "metrics.jsonl", {"global_step": step + 1, **row}, durable=False)
        return row

    def evaluate(self) -> dict[str, float]:
        """Before training, with a row of its own."""
        row = self._evaluation(0)
        append_line(self.path / "metrics.jsonl", {"global_step": 0, **row}, durable=False)
        return row

    def _evaluation(self, step: int) -> dict[str, float]:
        return eval_metrics(self._batch("eval", step)) | {"time/evaluate": 20.0}

    def _noise(self, length: int) -> np.ndarray:
        return np.array([self._random.gauss(0, 0.02) for _ in range(length)], np.float32)

    def _batch(self, kind: BatchKind, step: int) -> list[Any]:
        groups, began = [], self.ledger.clock + 10
        for task in range(self._tasks):
            label = f"held-out-{task}" if kind == "eval" else f"task-{task + step * 7 % 40}"
            made = []
            for member in range(self._group):
                self.ledger.clock = began + 0.2 * (task * self._group + member)
                made.append(self._trial(kind, step, str(TrialName(kind, step, task, member)), label))
            groups.append(group_trajectories(label, made))
        return groups

    def _trial(self, kind: BatchKind, step: int, name: str, task: str) -> Trajectory:
        random_ = self._random
        lost = random_.random() < 0.02
        reward = None if lost else float(random_.random() < 0.2 + 0.6 * step / (step + 30))
        turns = tuple(self._turn(i) for i in range(self._turns))
        outcome = Outcome.INFRASTRUCTURE_ERROR if lost else Outcome.COMPLETED
        why = random_.choice(("no space left on device", "the container went down")) if lost else ""
        times = {"environment": 1.2, "agent_setup": 0.2, "agent": 20.0, "verifier": 0.4, "total": TRIAL_SEC}
        trial = Trajectory(task, name, turns, reward, outcome, why, times=times)
        batch = batch_name(kind, step)
        write_trajectory(self.path / "trajectories" / batch, trial)
        self._harbor(self.path / "rollouts" / batch / name)
        host = self.hosts[TrialName.parse(name).member % len(self.hosts)] if self.hosts else ""
        self.ledger.started(name, task, 1, host)
        self.ledger.clock += TRIAL_SEC
        self.ledger.ended(trial, "dropped" if lost else "graded")
        return trial

    def _turn(self, index: int) -> Turn:
        seen = tuple(self._random.choices(range(200), k=800 if index == 0 else self._words))
        sampled = tuple(self._random.choices(range(200), k=self._words))
        logprobs = tuple(-self._random.expovariate(2) for _ in sampled)
        return Turn(0, seen, sampled, logprobs, 1, seconds=0.5, text=self.text)

    def _harbor(self, folder: Path) -> None:
        for part in ("agent", "verifier"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        marks = [self.ledger.clock + offset for offset in (0.0, 1.2, 1.4, 21.4, 21.8)]
        times = [datetime.fromtimestamp(mark, UTC).isoformat() for mark in marks]
        phases = ("environment_setup", "agent_setup", "agent_execution", "verifier")
        result = {p: {"started_at": times[i], "finished_at": times[i + 1]} for i, p in enumerate(phases)}
        (folder / "result.json").write_text(json.dumps(result | {"finished_at": times[-1]}))
        first = {"source": "user", "message": INSTRUCTION + folder.name[-8:-4], "timestamp": times[2]}
        steps: list[dict[str, Any]] = [first]
        for turn in range(self._turns):
            calls = [{"function_name": "bash_command", "arguments": {"keystrokes": self.text, "duration": 1.0}}]
            screen = f"$ {self.text}" + "".join(f"file {self._random.random()}\n" for _ in range(20))
            at = datetime.fromtimestamp(marks[2] + 2.5 * (turn + 1), UTC).isoformat()
            step = {"source": "agent", "message": f"Plan {turn}: {self.text}", "tool_calls": calls, "timestamp": at}
            steps.append(step | {"observation": {"results": [{"content": screen}]}})
        (folder / "agent" / "trajectory.json").write_text(json.dumps({"steps": steps}))
        (folder / "verifier" / "test-stdout.txt").write_text(f"{self.text}\n1 passed\n")
        (folder / "verifier" / "reward.txt").write_text("1\n")
