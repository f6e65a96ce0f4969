"""What a person sees in the terminal while a run goes on: plain lines, and a bar of trials on a real terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from src.learning.trajectory import Outcome, Trajectory


class Display:
    """Prints to stdout; one line a step, so that a log file reads well too."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True, emoji=False)
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        self._console.print(f"[{int(elapsed // 60):3d}:{elapsed % 60:04.1f}] {text}", markup=False)
        sys.stdout.flush()

    @contextmanager
    def trials(self, label: str, total: int) -> Iterator[Callable[[Trajectory], None]]:
        """A bar of finished trials; yields what to call with each."""
        rewards: list[float] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as bar:
            task = bar.add_task(label, total=total)

            def finished(trajectory: Trajectory) -> None:
                if trajectory.reward is not None:
                    rewards.append(trajectory.reward)
                mean = sum(rewards) / len(rewards) if rewards else 0.0
                bar.update(task, advance=1, description=f"{label}  reward {mean:.2f}")
                if trajectory.outcome in (Outcome.INFRASTRUCTURE_ERROR, Outcome.VERIFIER_ERROR):
                    self.say(f"  {trajectory.trial_name} {trajectory.outcome.value}: {trajectory.detail}")

            yield finished

    def step(self, step: int, total: int, row: dict[str, float]) -> None:
        """One line for a finished step."""
        signal = row["group/count"] * (1 - row["group/constant_fraction"])
        lost = f"  lost {row['group/trials_lost']:.0f}" if row["group/trials_lost"] else ""
        self.say(
            f"step {step}/{total}  reward {row['reward/mean']:.3f}  "
            f"groups with signal {signal:.0f}/{row['group/count']:.0f}  trials {row['rollout/trials']:.0f}{lost}  "
            f"turns {row['turn/per_trial']:.1f}  sample {row['time/sample']:.1f}s  update {row['time/update']:.1f}s"
        )

    def evaluation(self, step: int, row: dict[str, float]) -> None:
        ungraded = f"  ungraded {row['eval/trials_ungraded']:.0f}" if row["eval/trials_ungraded"] else ""
        self.say(
            f"held-out after step {step}: reward {row['eval/reward_mean']:.3f} ± {row['eval/reward_stderr']:.3f} "
            f"({row['eval/tasks']:.0f} tasks, {row['eval/trials']:.0f} trials){ungraded}"
        )
