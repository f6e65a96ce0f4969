"""Which metrics stand in which panel: the sections of docs/metrics.md in its order, related lines in one plot."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
FIRST = "Look first"
LINE = re.compile(r"^\| `([^`]+)` \|\s*([^|]*?)\s*\|", re.MULTILINE)  # a metric and its unit


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over global_step; `metrics`: names, or one pattern with `*`."""

    title: str
    metrics: tuple[str, ...]
    unit: str = ""

    @property
    def pattern(self) -> str | None:
        """A regular expression, where the metric is a pattern."""
        if "*" not in self.metrics[0]:
            return None
        return f"^{re.escape(self.metrics[0]).replace(re.escape('*'), '[^/]+')}$"


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    plots: tuple[Plot, ...]


LOOK_FIRST = (
    Plot("reward of the batch", ("reward/mean", "reward/best_of_group"), "reward"),
    Plot("held-out reward, 95 % interval", ("eval/reward_mean", "eval/reward_low", "eval/reward_high"), "reward"),
    Plot("groups without signal", ("group/constant_fraction",), "share"),
    Plot("how trials end", ("outcome/*",), "trials"),
    Plot("answers that do not parse", ("turn/parse_failure_rate",), "share"),
    Plot("sampler against trainer", ("logprobs/kl_sampler_trainer",), "nats a token"),
    Plot("a step's time", ("time/sample", "time/update", "time/publish", "time/evaluate"), "s"),
    Plot("requests and agents", ("util/requests_in_flight", "util/agents_at_work"), "mean number"),
)
# In one plot within their section, which is that of the first of them.
TOGETHER = (
    Plot("reward of the batch", ("reward/mean", "reward/best_of_group"), "reward"),
    Plot("held-out reward, 95 % interval", ("eval/reward_mean", "eval/reward_low", "eval/reward_high"), "reward"),
    Plot("learning rate", ("optim/learning_rate", "optim/learning_rate_applied")),
    Plot("tokens of the batch", ("tokens/sampled", "tokens/unique"), "tokens"),
    Plot("a step's time", ("time/sample", "time/update", "time/publish", "time/evaluate"), "s"),
    Plot("the funnel", ("funnel/started", "funnel/finished", "funnel/graded", "funnel/trained"), "trials"),
)


def sections(text: str | None = None) -> list[Section]:
    """LOOK_FIRST, then each section of the page (`text`, or docs/metrics.md) with every metric that it names."""
    parts = re.split(r"^## (.+)$", PAGE.read_text() if text is None else text, flags=re.MULTILINE)[1:]
    pages = zip(parts[::2], parts[1::2], strict=True)
    found = [Section(name.strip(), plots) for name, body in pages if (plots := _plots(LINE.findall(body)))]
    return [Section(FIRST, LOOK_FIRST), *found]


def _plots(named: list[tuple[str, str]]) -> tuple[Plot, ...]:
    """In the order of the page; what belongs together stands where the first of it does."""
    left = dict(named)
    plots: list[Plot] = []
    for name, unit in named:
        if name in left:
            plot = _together(name, left.keys()) or Plot(name, (name,), unit)
            plots.append(plot)
            for metric in plot.metrics:
                left.pop(metric)
    return tuple(plots)


def _together(first: str, there: Collection[str]) -> Plot | None:
    return next((plot for plot in TOGETHER if plot.metrics[0] == first and set(plot.metrics) <= set(there)), None)
