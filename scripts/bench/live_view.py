#!/usr/bin/env python
"""What the live view costs: 64 parallel trials of nothing but events, on a terminal of its own.

    .venv/bin/python scripts/bench/live_view.py [SECONDS [TRIALS [TURN_SECONDS]]]

The same events, from the same seed, go to a display with a live view, to one that prints lines, and to nobody, each in
a process of its own; CPU seconds of the whole process are compared, so that what else the machine does matters little.
"""

import asyncio
import json
import os
import pty
import random
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402

from src.display.display import Display  # noqa: E402
from src.display.state import RunState  # noqa: E402
from src.display.view import REFRESH_SEC, LiveView  # noqa: E402
from src.learning.trajectory import Outcome, Trajectory  # noqa: E402
from src.rollout.states import UNWATCHED, TrialState, Watched, Watcher  # noqa: E402

COLUMNS, ROWS = 120, 40
TURNS = 5
N_EVENTS = 200_000
N_DRAWS = 500


class Counting:
    """Passes on what happens, and counts it."""

    def __init__(self, watcher: Watcher) -> None:
        self.events = 0
        self._watcher = watcher

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        self.events += 1
        self._watcher.moved(trial_name, state)

    def sampled(self, tokens: int) -> None:
        self.events += 1
        self._watcher.sampled(tokens)

    def replaced(self, trial_name: str) -> None: ...
    def kept(self, trajectory: Trajectory) -> None: ...


async def trial(name: str, watched: Watched, turn_sec: float, dice: random.Random) -> Trajectory:
    """Its phases, and turns of sampling and commands, as long as chance has it."""
    for state in (TrialState.WAITING, TrialState.STARTING):
        watched.moved(state)
        await asyncio.sleep(dice.uniform(0, turn_sec))
    for _ in range(TURNS):
        watched.asked()
        await asyncio.sleep(dice.uniform(0, 1.5 * turn_sec))
        watched.answered(dice.randrange(400))
        await asyncio.sleep(dice.uniform(0, 0.5 * turn_sec))
    watched.moved(TrialState.VERIFYING)
    await asyncio.sleep(dice.uniform(0, turn_sec))
    watched.moved(None)
    return Trajectory("task", name, (), float(dice.random() < 0.4), Outcome.COMPLETED)


async def batches(display: Display, watcher: Counting, seconds: float, parallel: int, turn_sec: float) -> None:
    dice, gate, step = random.Random(0), asyncio.Semaphore(parallel), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with display.trials(f"step {step}", 3 * parallel) as finished:

            async def one(name: str, finished=finished) -> None:
                async with gate:
                    if time.monotonic() < end:
                        finished(await trial(name, Watched(name, watcher), turn_sec, dice))

            names = [f"s{step:06d}-p{n // 8:02d}-g{n % 8:02d}" for n in range(3 * parallel)]
            await asyncio.gather(*map(one, names))
        step += 1


def drive(how: str, report: Path, seconds: float, parallel: int, turn_sec: float) -> None:
    """In the process that is measured."""
    display = Display(mode="auto" if how == "live view" else "plain")
    watcher = Counting(UNWATCHED if how == "nobody" else display.watcher)
    with display:
        wall, cpu = time.monotonic(), time.process_time()
        asyncio.run(batches(display, watcher, seconds, parallel, turn_sec))
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    report.write_text(json.dumps({"wall": wall, "cpu": cpu, "events": watcher.events}))


def measured(how: str, arguments: list[str]) -> dict[str, float]:
    """The process that is measured, on a terminal that somebody reads."""
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    shown = [0]

    def read() -> None:
        try:
            while data := os.read(reader, 65536):
                shown[0] += len(data)
        except OSError:  # how a terminal ends
            return

    thread = threading.Thread(target=read)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--drive", how, str(report), *arguments]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        thread.start()
        if process.wait() != 0:
            raise SystemExit(f"{how}: the process ended with {process.returncode}")
        thread.join()
        os.close(reader)
        return json.loads(report.read_text()) | {"shown": shown[0]}


def an_event_costs(watcher: Watcher) -> float:
    """CPU microseconds of one event on a state that nobody reads."""
    watched = [Watched(f"s000000-p{n // 8:02d}-g{n % 8:02d}", watcher) for n in range(64)]
    began = time.process_time()
    for n in range(N_EVENTS // 3):
        watched[n % 64].asked()
        watched[n % 64].answered(100)
    return (time.process_time() - began) / N_EVENTS * 1e6


def a_draw_costs() -> float:
    """CPU milliseconds of one picture of a full state, written to a file that takes everything."""
    state = RunState()
    for step in range(1, 61):
        state.logged(step, {"reward/mean": step % 7 / 7, "time/step": 60.0}, 100)
    state.begin(True, 192, "step 61: sampling")
    for n in range(64):
        state.moved(f"s000060-p{n // 8:02d}-g{n % 8:02d}", list(TrialState)[n % 5])
        state.finished(Trajectory("task", f"s000060-p{n // 8:02d}-g{n % 8:02d}", (), n % 2, Outcome.COMPLETED))
    notes = {"Ctrl-C": "cancels running trials, saves the weights and ends; a second Ctrl-C leaves at once"}
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, color_system="256", soft_wrap=True)
        view = LiveView(console, state, lambda: notes, threading.RLock())
        view.open()
        began = time.process_time()
        for _ in range(N_DRAWS):
            view.draw()
        cost = (time.process_time() - began) / N_DRAWS * 1e3
        view.close()
        return cost


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        how, report, seconds, parallel, turn_sec = sys.argv[2:]
        drive(how, Path(report), float(seconds), int(parallel), float(turn_sec))
        return 0
    arguments = [*sys.argv[1:], *("60", "64", "2")[len(sys.argv) - 1 :]]
    print(f"{arguments[1]} trials at once for {arguments[0]} s, a turn every {arguments[2]} s; CPU % of one core")
    print(f"{'events go to':14} {'events/s':>9} {'CPU s':>7} {'CPU %':>7} {'beyond nobody':>14} {'KB/s shown':>11}")
    nobody = 0.0
    for how in ("nobody", "lines", "live view"):
        m = measured(how, arguments)
        share = 100 * m["cpu"] / m["wall"]
        nobody = nobody or share
        print(
            f"{how:14} {m['events'] / m['wall']:9.0f} {m['cpu']:7.2f} {share:7.2f} {share - nobody:14.2f} "
            f"{m['shown'] / m['wall'] / 1000:11.1f}"
        )
    cost = an_event_costs(Display().watcher)
    print(f"an event costs {cost:.2f} us: 10,000 a second are {cost:.2f} % of a core")
    draw = a_draw_costs()
    print(f"a draw costs {draw:.2f} ms: {1 / REFRESH_SEC:.0f} a second are {draw / REFRESH_SEC / 10:.2f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
