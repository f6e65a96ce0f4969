"""Draws the reward curve of a run: training reward by step, and held-out reward."""

import logging
from pathlib import Path
from statistics import fmean

from harbortrainer.durable.files import replacing
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import DiskFault

log = logging.getLogger("harbortrainer")


def draw_reward_curve(metrics: Path, picture: Path, title: str) -> None:
    """Draw metrics.jsonl into a PNG, written whole or not at all; a run without rows gets none.

    A full disk is a warning: the picture must not stop a run.
    """
    rows = read_lines(metrics)
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.0), dpi=120)
    train = [(row["global_step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
    held_out = [(r["global_step"], r["eval/reward_mean"], r["eval/reward_stderr"]) for r in rows if "eval/tasks" in r]
    if train:
        steps, rewards = zip(*train, strict=True)
        axes.plot(steps, rewards, color="#9db8d9", linewidth=1, marker="o", markersize=3, label="training batch")
        axes.plot(steps, _smooth(rewards), color="#1f5fa8", linewidth=2.2, label="training, mean of 3 steps")
    if held_out:
        steps, rewards, errors = zip(*held_out, strict=True)
        axes.errorbar(
            steps, rewards, yerr=errors, color="#d1495b", fmt="s-", capsize=3, label="held-out tasks (± s.e.)"
        )
    axes.set(xlabel="optimizer batches", ylabel="reward", ylim=(0, 1.02), title=title)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    try:
        with replacing(picture) as file:
            figure.savefig(file, format="png")
    except DiskFault as error:
        log.warning("%s", error)
    finally:
        pyplot.close(figure)


def _smooth(values: tuple[float, ...]) -> list[float]:
    """Mean of each value and the two before it."""
    return [fmean(values[max(0, i - 2) : i + 1]) for i in range(len(values))]
