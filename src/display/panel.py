"""A snapshot -> the lines of the live view, as wide and as high as the terminal allows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from src.display.snapshot import Snapshot, Trials
from src.rollout.states import TrialState

Part = tuple[str, str]  # text, style of rich
Line = list[Part]

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for terminals without UTF-8
LABEL = 8  # columns of a row's name
GAP = "  "
SPARE = 3  # columns that stay free: the terminal echoes ^C behind the last line
# Rows in the order in which they are given up when the terminal is low; what is not named stays.
GIVEN_UP = ("rule", "last", "cost", "groups", "tokens", "time", "reward", "Ctrl-C")


@dataclass(frozen=True, slots=True)
class Words:
    """What the panel says besides the snapshot. `spent`: "" = nobody counts the cost."""

    title: str
    interrupt: str
    stopping: bool = False
    spent: str = ""


def panel(now: Snapshot, words: Words, width: int, height: int, *, unicode: bool = True) -> list[Line]:
    """At most two thirds of `height` lines (one at least), each shorter than `width` cells."""
    room = max(1, width - SPARE)
    rows = {
        "rule": [[(set_cell_size(f"-- {words.title} " + "-" * width, room), "dim")]],
        "step": _row("step", _step(now), room),
        "time": _row("time", _time(now), room),
        "reward": _row("reward", _reward(now, room, BARS if unicode else PLAIN_BARS), room),
        "trials": _row("trials", _trials(now.trials), room),
        "groups": _row("groups", _groups(now), room),
        "tokens": _row("tokens", _tokens(now), room),
        "cost": _row("cost", [(words.spent, "")] if words.spent else [], room),
        "last": _last(now, room),
        "Ctrl-C": _row("stop" if words.stopping else "Ctrl-C", _interrupt(words), room),
    }
    most = max(1, height * 2 // 3)
    for name in GIVEN_UP:
        if sum(map(len, rows.values())) > most:
            rows[name] = []
    return [line for lines in rows.values() for line in lines][:most]


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def sparkline(values: Sequence[float], bars: str = BARS) -> str:
    """One bar a value, from the lowest of them to the highest; equal values are in the middle."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return bars[len(bars) // 2 - 1] * len(values)
    return "".join(bars[int((value - low) / (high - low) * (len(bars) - 1) + 0.5)] for value in values)


def _step(now: Snapshot) -> Line:
    done = [(f"{now.step}/{now.total_steps} done", "bold")] if now.total_steps else []
    return [*done, (f"{now.doing}, {clock(now.doing_for)}", "")]


def _time(now: Snapshot) -> Line:
    parts = [(f"{clock(now.elapsed)} so far", "")]
    if now.to_come is not None:
        steps = "the last step" if now.estimated_from == 1 else f"the last {now.estimated_from} steps"
        parts += [(f"about {clock(now.to_come)} to come", ""), (f"(estimate from {steps})", "dim")]
    elif now.total_steps:
        parts.append(("(no estimate before step 1)", "dim"))
    return parts


def _reward(now: Snapshot, room: int, bars: str) -> Line:
    parts: Line = []
    if now.rewards:
        shown = now.rewards[-max(4, min(len(now.rewards), (room - LABEL) // 3)) :]
        parts = [(f"{now.rewards[-1]:.3f}", "bold"), (sparkline(shown, bars), "cyan")]
        if len(shown) > 1:
            parts.append((f"{min(shown):.3f} to {max(shown):.3f} in {len(shown)} steps", "dim"))
    if now.held_out is not None:
        step, mean, error = now.held_out
        parts += [(f"held-out {mean:.3f} ± {error:.3f}", ""), (f"after step {step}", "dim")]
    return parts


def _trials(trials: Trials | None) -> Line:
    if trials is None:
        return []
    digits = len(str(trials.total))
    parts = [(f"{trials.done:{digits}d}/{trials.total} done", "bold")]
    parts.append((f"failed {trials.failed}", "red" if trials.failed else ""))
    if trials.replaced:
        parts.append((f"replaced {trials.replaced}", "yellow"))
    counts = {"queued": trials.queued} | {state.value: trials.states.get(state, 0) for state in TrialState}
    return [*parts, *((f"{name} {count:<{digits}d}", "" if count else "dim") for name, count in counts.items())]


def _groups(now: Snapshot) -> Line:
    trials = now.trials
    if trials is None or trials.reward is None:
        return []
    if not trials.training:
        return [(f"reward {trials.reward:.3f} so far", "")]
    return [(f"{trials.with_signal} of {trials.groups} so far with signal", ""), (f"reward {trials.reward:.3f}", "")]


def _tokens(now: Snapshot) -> Line:
    if now.trials is None:
        return []
    return [(f"{now.tokens_per_second:,.0f} a second", ""), (f"{now.trials.tokens:,} sampled in this batch", "")]


def _last(now: Snapshot, room: int) -> list[Line]:
    """Newest last, one line each."""
    lines = [(f"{clock(event.at)} {event.text}", "") for event in now.events[-3:]]
    return [
        [(label := _label("last" if first else "", room), "dim"), (_cut(text, room - len(label)), style)]
        for first, (text, style) in zip([True, False, False], lines, strict=False)
    ]


def _interrupt(words: Words) -> Line:
    """Word by word, so that it is never cut."""
    style = "bold yellow" if words.stopping else "dim"
    return [(word, style) for word in words.interrupt.split(" ")] if words.interrupt else []


def _row(name: str, parts: Line, room: int) -> list[Line]:
    """The parts side by side, on further lines where one does not hold them. No part, no row."""
    if not parts:
        return []
    gap = " " if name in ("Ctrl-C", "stop") else GAP
    label = _label(name, room)
    lines: list[Line] = [[(label, "dim")]]
    used = len(label)
    for text, style in parts:
        if used > len(label) and used + len(gap) + cell_len(text) > room:
            lines.append([(" " * len(label), "")])
            used = len(label)
        if used > len(label):
            text = gap + text
        text = _cut(text, max(1, room - used))
        lines[-1].append((text, style))
        used += cell_len(text)
    return lines


def _label(name: str, room: int) -> str:
    """None where it would take the room of what it names."""
    return name.ljust(LABEL) if room >= 2 * LABEL else ""


def _cut(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 1 else set_cell_size(text, cells)
