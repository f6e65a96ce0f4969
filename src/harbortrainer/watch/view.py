"""The state of a run, which any thread updates, and the live view, which draws it on the terminal."""

import contextlib
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

from harbortrainer.learning.trajectory import Trajectory, TrialName
from harbortrainer.rollout.gates import TrialObserver, TrialState

N_REWARDS = 60  # steps in the sparkline
N_HOSTS = 6  # shown by name, those with the most trials
N_STEPS = 10  # steps in the estimate of the remaining time
END_LIMIT_SEC = 2.0  # wait this long for the thread: a stopped terminal (Ctrl-S) takes nothing
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for terminals without UTF-8
LABEL = 8  # columns of a row's name
SPARE = 3  # free columns: the terminal echoes ^C behind the last line
NOTES = {"cost": "", "Ctrl-C": "dim", "stop": "bold yellow"}  # styles
DROPPED = ("", "cost", "hosts", "groups", "tokens", "time", "reward", "Ctrl-C")  # on a low terminal, in this order

Line = list[tuple[str, str]]  # parts: text, style of rich
Notes = dict[str, str]  # rows besides the state: name, text


@dataclass
class Batch:
    """A training batch or an evaluation. `done`: trials with a grade; `failed`: slots without one."""

    training: bool
    total: int
    began: float
    done: int = 0
    failed: int = 0
    replaced: int = 0
    tokens: int = 0
    groups: defaultdict[tuple[Any, ...], list[float]] = field(default_factory=lambda: defaultdict(list))  # rewards

    @property
    def with_signal(self) -> int:
        """Groups whose rewards differ."""
        return sum(min(rewards) < max(rewards) for rewards in self.groups.values())

    @property
    def reward(self) -> float | None:
        """Mean so far."""
        return fmean(chain(*self.groups.values())) if self.groups else None


class RunState(TrialObserver):
    """Updates cost one dictionary write; totals are computed on read. A reader holds `lock`."""

    title = "harbortrainer"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self.batch: Batch | None = None  # runs now, or ran last
        self.rewards: deque[float] = deque(maxlen=N_REWARDS)
        self.step_seconds: deque[float] = deque(maxlen=N_STEPS)
        self.step = self.total_steps = 0
        self.on_hosts: Mapping[str, tuple[int, int]] = {}  # trials now and places, by name; with hosts
        self.hosts_lost = 0
        self.held_out: tuple[int, float, float] | None = None  # after which step, mean reward, standard error
        self.doing = "checking tasks, environments and model"
        self._clock = clock
        self.began = self.since = clock()  # the run; what it is doing
        self._states: dict[str, TrialState] = {}
        self._step_began: float | None = None

    # -- updates from trials

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        with self.lock:
            if state is None:
                self._states.pop(trial_name, None)
            else:
                self._states[trial_name] = state

    def sampled(self, tokens: int) -> None:
        with self.lock:
            if self.batch is not None:
                self.batch.tokens += tokens

    def replaced(self, trial_name: str) -> None:
        with self.lock:
            if self.batch is not None:
                self.batch.replaced += 1

    def finished(self, trajectory: Trajectory) -> None:
        """Count a filled slot, graded or not; take rewards of the batch itself, not of an evaluation beside it."""
        with self.lock:
            batch, name = self.batch, TrialName.parse(trajectory.trial_name)
            if batch is None:
                return
            if trajectory.reward is None:
                batch.failed += 1
                return
            batch.done += 1
            if batch.training == (name.kind == "step"):
                batch.groups[name.group].append(trajectory.reward)

    kept = finished

    def hosts(self, trials: Mapping[str, tuple[int, int]], lost: int) -> None:
        with self.lock:
            self.on_hosts, self.hosts_lost = trials, lost

    # -- updates from the run

    def plan(self, total_steps: int, rows: Iterable[Mapping[str, float]]) -> None:
        """Set the length of the run; `rows`: logged by an earlier process."""
        self.total_steps = total_steps
        for row in rows:
            self.logged(int(row["global_step"]), row)

    def logged(self, step: int, row: Mapping[str, float], total_steps: int = 0) -> None:
        """Note the metrics of a step, of an evaluation, or of both."""
        with self.lock:
            self.total_steps = total_steps or self.total_steps
            if "group/count" in row or "sft/nll" in row:
                self.step, self._step_began = step, None
                if "reward/mean" in row:
                    self.rewards.append(row["reward/mean"])
                self.step_seconds.append(row.get("time/step", 0.0))
            if "eval/reward_mean" in row:
                self.held_out = step, row["eval/reward_mean"], row.get("eval/reward_stderr", 0.0)
            if "eval/tasks" in row and self.step_seconds:
                self.step_seconds[-1] += row.get("time/evaluate", 0.0)

    def begin(self, training: bool, total: int, doing: str) -> None:
        """Start a batch, or an evaluation."""
        self.do(doing)
        with self.lock:
            self.batch = Batch(training, total, self._clock())
            if training and self._step_began is None:
                self._step_began = self._clock()

    def do(self, what: str) -> None:
        with self.lock:
            if what != self.doing:
                self.doing, self.since = what, self._clock()

    # -- totals

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def states(self) -> Counter[TrialState]:
        """How many trials are in each state."""
        return Counter(self._states.values())

    @property
    def remaining(self) -> float | None:
        """Estimate: each remaining step takes as long as the last ones did on average; None before the first."""
        if not self.step_seconds or not self.total_steps:
            return None
        a_step = fmean(self.step_seconds)
        under_way = self.now - self._step_began if self._step_began is not None else 0.0
        return max(0.0, (self.total_steps - self.step) * a_step - min(under_way, a_step))


class LiveView(Live):
    """Draws the view twice a second. `notes`: more rows; a thread that prints holds `lock`."""

    refresh_sec = 0.5

    def __init__(self, console: Console, state: RunState, notes: Callable[[], Notes], lock: threading.RLock) -> None:
        super().__init__(
            self, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False,
            vertical_overflow="visible",
        )  # fmt: skip
        self._state, self._notes, self._drawing = state, notes, lock
        self._widths: list[int] = []  # of the lines on the screen
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="live view", daemon=True)

    def open(self) -> None:
        with self._drawing:
            self.start(refresh=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the view and show the cursor."""
        self._over.set()
        self._thread.join(END_LIMIT_SEC)
        with self._drawing, contextlib.suppress(OSError):  # the terminal is gone
            self.stop()

    def draw(self) -> None:
        """Raises OSError when the terminal is gone."""
        with self._drawing:
            if not self._over.is_set():
                self.refresh()

    def _keep_drawing(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.wait(self.refresh_sec):
                self.draw()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Erase also the rows onto which a narrower terminal folded lines; rich erases only the lines that it drew."""
        with contextlib.suppress(OSError):  # a file; a terminal that is gone
            size = os.get_terminal_size(self.console.file.fileno())  # rich prefers $COLUMNS, which no resize changes
            self.console.size = ConsoleDimensions(size.columns or 80, size.lines or 24)
        folded = sum(max(0, -(-width // self.console.width) - 1) for width in self._widths)
        erase = Control(*[(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * folded)
        return [erase, *super().process_renderables(renderables)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        notes, bars = self._notes(), BARS if console.encoding.startswith("utf") else PLAIN_BARS
        with self._state.lock:
            lines = view(self._state, notes, options.max_width, options.size.height, bars)
        self._widths = [sum(cell_len(text) for text, _ in line) for line in lines]
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from (Segment(text, console.get_style(style) if style else None) for text, style in line)


def view(state: RunState, notes: Notes, width: int, height: int, bars: str = BARS) -> list[Line]:
    """Return the lines: at least one, at most two thirds of `height`, each shorter than `width` cells."""
    room = max(1, width - SPARE)
    done = [(f"{state.step}/{state.total_steps} done", "bold")] if state.total_steps else []
    rows = {
        "step": [*done, (f"{state.doing}, {clock(state.now - state.since)}", "")],
        "time": _time(state),
        "reward": _reward(state, room, bars),
        "hosts": _hosts(state),
        **(_batch(state.batch, state) if state.batch is not None else {}),
    }
    lines = {"": [[(set_cell_size(f"-- {state.title} " + "-" * width, room), "dim")]]}
    lines |= {name: _row(name, parts, room, "  ") for name, parts in rows.items() if parts}
    lines |= {
        name: _row(name, [(word, NOTES[name]) for word in text.split()], room, " ") for name, text in notes.items()
    }
    most = max(1, height * 2 // 3)
    for name in DROPPED:
        if sum(map(len, lines.values())) > most:
            lines.pop(name, None)
    return [line for row in lines.values() for line in row][:most]


def clock(seconds: float) -> str:
    """Return 1:02:03"""
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def sparkline(values: Sequence[float], bars: str = BARS) -> str:
    """Return one bar a value, scaled from the lowest to the highest; equal values get a middle bar."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return bars[len(bars) // 2 - 1] * len(values)
    return "".join(bars[int((value - low) / (high - low) * (len(bars) - 1) + 0.5)] for value in values)


def _time(state: RunState) -> Line:
    parts = [(f"{clock(state.now - state.began)} so far", "")]
    if (remaining := state.remaining) is not None:
        n_steps = len(state.step_seconds)
        steps = "the last step" if n_steps == 1 else f"the last {n_steps} steps"
        parts += [(f"about {clock(remaining)} to come", ""), (f"(estimate from {steps})", "dim")]
    elif state.total_steps:
        parts.append(("(no estimate before step 1)", "dim"))
    return parts


def _reward(state: RunState, room: int, bars: str) -> Line:
    parts: Line = []
    if rewards := list(state.rewards):
        shown = rewards[-max(4, min(len(rewards), (room - LABEL) // 3)) :]
        parts = [(f"{rewards[-1]:.3f}", "bold"), (sparkline(shown, bars), "cyan")]
        if len(shown) > 1:
            parts.append((f"{min(shown):.3f} to {max(shown):.3f} in {len(shown)} steps", "dim"))
    if state.held_out is not None:
        step, mean, error = state.held_out
        parts += [(f"held-out {mean:.3f} ± {error:.3f}", ""), (f"after step {step}", "dim")]
    return parts


def _hosts(state: RunState) -> Line:
    """Each host's trials and places, of many only some."""
    hosts = state.on_hosts
    if not hosts and not state.hosts_lost:
        return []
    parts: Line = [(f"{len(hosts)}", "bold")]
    if state.hosts_lost:
        parts.append((f"lost {state.hosts_lost}", "yellow"))
    shown = sorted(hosts, key=lambda name: (-hosts[name][0], name))[:N_HOSTS] if len(hosts) > N_HOSTS else hosts
    parts += [(f"{name} {hosts[name][0]}/{hosts[name][1]}", "") for name in shown]
    if others := [hosts[name] for name in hosts if name not in shown]:
        trials, places = (sum(one[part] for one in others) for part in (0, 1))
        parts.append((f"{len(others)} others {trials}/{places}", ""))
    return parts


def _batch(batch: Batch, state: RunState) -> dict[str, Line]:
    digits = len(str(batch.total))
    trials = [(f"{batch.done:{digits}d}/{batch.total} done", "bold")]
    trials.append((f"failed {batch.failed}", "red" if batch.failed else ""))
    if batch.replaced:
        trials.append((f"replaced {batch.replaced}", "yellow"))
    states = state.states
    queued = max(0, batch.total - batch.done - batch.failed - states.total())
    counts = {"queued": queued} | {one.value: states[one] for one in TrialState}
    trials += [(f"{name} {count:<{digits}d}", "" if count else "dim") for name, count in counts.items()]
    groups = [(f"{batch.with_signal} of {len(batch.groups)} so far with signal", "")] if batch.training else []
    if (reward := batch.reward) is not None:
        groups.append((f"reward {reward:.3f}", ""))
    per_second = batch.tokens / max(1.0, state.now - batch.began)
    tokens = [(f"{per_second:,.0f} a second", ""), (f"{batch.tokens:,} sampled in this batch", "")]
    return {"trials": trials, "groups": groups, "tokens": tokens}


def _row(name: str, parts: Line, room: int, gap: str) -> list[Line]:
    """The parts side by side, wrapped onto more lines where needed."""
    label = name.ljust(LABEL) if room >= 2 * LABEL else ""
    lines: list[Line] = [[(label, "dim")]]
    used = len(label)
    for text, style in parts:
        if used > len(label) and used + len(gap) + cell_len(text) > room:
            lines.append([(" " * len(label), "")])
            used = len(label)
        if used > len(label):
            text = gap + text
        if cell_len(text) > room - used:
            text = set_cell_size(text, max(0, room - used - 1)) + "…"
        lines[-1].append((text, style))
        used += cell_len(text)
    return lines
