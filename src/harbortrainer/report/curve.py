"""Draws a run's curve: reward by step of a training run, loss by step of fine-tuning."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from harbortrainer.durable.files import replacing
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import DiskFault

log = logging.getLogger("harbortrainer")
LIGHT, DARK, RED = "#9db8d9", "#1f5fa8", "#d1495b"


def draw_curve(metrics: Path, folder: Path, title: str) -> None:
    """Draw metrics.jsonl into folder/loss_curve.png where rows have a supervised loss, else into reward_curve.png.

    The picture is written whole or not at all; a run without rows gets none. A full disk is a warning: the picture
    must not stop a run.
    """
    rows = read_lines(metrics)
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tuned = any("sft/nll" in row or "sft/held_out_nll" in row for row in rows)
    figure, axes = pyplot.subplots(figsize=(7.5, 4.0), dpi=120)
    (_losses if tuned else _rewards)(axes, rows)
    axes.set(xlabel="optimizer batches", title=title)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper right" if tuned else "lower right", frameon=False)
    figure.tight_layout()
    try:
        with replacing(folder / ("loss_curve.png" if tuned else "reward_curve.png")) as file:
            figure.savefig(file, format="png")
    except DiskFault as error:
        log.warning("%s", error)
    finally:
        pyplot.close(figure)


def _rewards(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    steps, rewards = _values(rows, "reward/mean")
    if steps:
        axes.plot(steps, rewards, color=LIGHT, linewidth=1, marker="o", markersize=3, label="training batch")
        axes.plot(steps, _smooth(rewards), color=DARK, linewidth=2.2, label="training, mean of 3 steps")
    held_out = [row for row in rows if "eval/tasks" in row]
    if held_out:
        steps, rewards = _values(held_out, "eval/reward_mean")
        errors = _values(held_out, "eval/reward_stderr")[1]
        axes.errorbar(steps, rewards, yerr=errors, color=RED, fmt="s-", capsize=3, label="held-out tasks (± s.e.)")
    axes.set(ylabel="reward", ylim=(0, 1.02))


def _losses(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for name, color, style, label in (
        ("sft/nll", DARK, "-", "training batch"),
        ("sft/held_out_nll", RED, "s--", "held-out conversations"),
    ):
        steps, losses = _values(rows, name)
        if steps:
            axes.plot(steps, losses, style, color=color, label=label)
    axes.set(ylabel="loss, nats a token")
    axes.set_ylim(bottom=0)


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of the rows that have the metric."""
    having = [row for row in rows if name in row]
    return [row["global_step"] for row in having], [row[name] for row in having]


def _smooth(values: Sequence[float]) -> list[float]:
    """Mean of each value and the two before it."""
    return [fmean(values[max(0, i - 2) : i + 1]) for i in range(len(values))]
