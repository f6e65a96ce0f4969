"""The live view: what the state counts and what the view shows of it."""

import threading

import pytest
from rich.cells import cell_len
from rich.console import ConsoleDimensions

from harbortrainer.learning.trajectory import Outcome
from harbortrainer.rollout.gates import TrialState
from harbortrainer.watch.view import LiveView, Notes, RunState, view
from tests.support.terminal import ROW, Pane, Terminal, console_of, trajectory

NOTES = {"Ctrl-C": "cancels running trials, saves the weights and ends; a second Ctrl-C leaves at once"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Clock:
    return Clock()


@pytest.fixture
def state(time: Clock) -> RunState:
    return RunState(time)


def lines(state: RunState, width: int = 120, height: int = 40, notes: Notes = NOTES) -> list[str]:
    return ["".join(text for text, _ in line) for line in view(state, notes, width, height)]


def busy(state: RunState, time: Clock) -> None:
    """A run in the middle of everything."""
    for step in range(1, 13):
        state.logged(step, ROW | {"reward/mean": step / 20}, 50)
    state.logged(10, {"eval/reward_mean": 0.5, "eval/reward_stderr": 0.05, "eval/tasks": 4.0, "time/evaluate": 30.0})
    state.begin(True, 48, "step 13: sampling")
    for member, one in enumerate(TrialState):
        state.moved(f"s000012-p07-g{member:02d}", one)
    state.finished(trajectory("s000012-p00-g00", 1.0))
    state.finished(trajectory("s000012-p00-g01", 0.0))
    state.finished(trajectory("s000012-p01-g00", 0.0))
    state.finished(trajectory("s000012-p02-g00", None, Outcome.INFRASTRUCTURE_ERROR))
    state.replaced("s000012-p02-g01")
    time.now += 20
    state.sampled(1000)


def test_a_step_without_a_grade_counts_and_has_no_reward(state: RunState) -> None:
    state.logged(1, ROW, 50)
    state.logged(2, {name: value for name, value in ROW.items() if not name.startswith("reward/")}, 50)
    state.logged(2, {"eval/tasks": 0.0, "time/evaluate": 30.0})
    assert (state.step, list(state.rewards), state.held_out) == (2, [ROW["reward/mean"]], None)
    assert list(state.step_seconds) == [100.0, 130.0]


def test_the_remaining_time_follows_past_steps(state: RunState, time: Clock) -> None:
    state.plan(10, [])
    assert state.remaining is None
    for step in (1, 2):
        state.begin(True, 4, "")
        time.now += 100
        state.logged(step, ROW)
    assert state.remaining == pytest.approx(800)
    state.begin(True, 4, "")
    time.now += 40
    assert state.remaining == pytest.approx(760)
    time.now += 400
    assert state.remaining == pytest.approx(700), "a step that takes longer does not change the others"
    state.logged(2, {"eval/reward_mean": 0.5, "eval/tasks": 4.0, "time/evaluate": 20.0})
    assert state.remaining == pytest.approx(8 * 110 - 110), "one evaluation in two steps"


def test_each_hosts_trials_and_places_are_shown_and_many_are_summed(state: RunState) -> None:
    assert not any(line.startswith("hosts") for line in lines(state))
    state.hosts({"10.0.0.2": (3, 4), "10.0.0.3": (0, 4)}, 1)
    assert "hosts   2  lost 1  10.0.0.2 3/4  10.0.0.3 0/4" in lines(state)
    state.hosts({f"h{n}": (n, 9) for n in range(10)}, 0)
    assert "hosts   10  h9 9/9  h8 8/9  h7 7/9  h6 6/9  h5 5/9  h4 4/9  4 others 6/36" in lines(state)


def test_an_earlier_process_is_remembered(state: RunState) -> None:
    rows = [{"global_step": 0, "eval/reward_mean": 0.1}, {"global_step": 1, **ROW}, {"global_step": 2, **ROW}]
    state.plan(5, rows)
    assert (state.step, state.total_steps, list(state.rewards)) == (2, 5, [0.25, 0.25])
    assert state.held_out == (0, 0.1, 0.0) and state.remaining == pytest.approx(300)


def test_the_view_shows_all_of_it(state: RunState, time: Clock) -> None:
    busy(state, time)
    text = "\n".join(lines(state, notes={"cost": "$1.20 of $5"} | NOTES))
    for shown in (
        "12/50 done", "step 13: sampling, 0:00:20", "0:00:20 so far", "to come", "estimate from the last 10 steps",
        "0.600", "▁", "█", "held-out 0.500 ± 0.050  after step 10", " 3/48 done", "failed 1", "replaced 1", "queued 39",
        "starting 1", "waiting 1", "sampling 1", "in command 1", "verifying 1", "1 of 2 so far with signal",
        "50 a second", "1,000 sampled in this batch", "$1.20 of $5", "a second Ctrl-C",
    ):  # fmt: skip
        assert shown in text, text


@pytest.mark.parametrize("height", [1, 2, 5, 10, 24, 60])
@pytest.mark.parametrize("width", [1, 8, 20, 40, 80, 200])
def test_the_view_fits_any_terminal(state: RunState, time: Clock, width: int, height: int) -> None:
    fresh = RunState()
    busy(state, time)
    state.title = "中" * 300
    for shown, notes in ((state, NOTES), (state, {"cost": "中" * 300}), (fresh, {})):
        drawn = lines(shown, width, height, notes)
        assert 1 <= len(drawn) <= max(1, height)
        assert all(cell_len(line) <= max(1, width - 3) for line in drawn), drawn


# -- on a terminal


class Screen:
    """A live view on a terminal whose size the test sets."""

    def __init__(self, state: RunState, columns: int = 80, height: int = 24, refresh_sec: float = 1e9) -> None:
        state.title = "run"
        self.terminal = Terminal(columns, height)
        self.console = console_of(Pane(self.terminal))
        self.console.size = ConsoleDimensions(columns, height)
        self.lock = threading.RLock()
        self.live = LiveView(self.console, state, lambda: {"Ctrl-C": "ends it"}, self.lock)
        self.live.refresh_sec = refresh_sec

    def resize(self, columns: int) -> None:
        """As a terminal that folds what it shows; the cursor stays behind the last line of the view."""
        shown = self.terminal.cells[: self.terminal._row + 1]
        rows = [row[at : at + columns] for row in shown for at in range(0, max(1, len(row)), columns)]
        self.terminal.cells, self.terminal.columns = rows, columns
        self.terminal._row, self.terminal._column = len(rows) - 1, len(rows[-1])
        self.console.size = ConsoleDimensions(columns, self.terminal.height)

    @property
    def above(self) -> str:
        """What stands above the view."""
        return self.terminal.text.partition("-- run")[0]


def test_the_view_is_drawn_in_place_below_what_is_printed(state: RunState, time: Clock) -> None:
    screen = Screen(state)
    screen.live.open()
    assert screen.terminal.text.startswith("-- run") and not screen.terminal.cursor_shown
    busy(state, time)
    for _ in range(3):
        screen.live.draw()
    assert screen.terminal.text.count("-- run") == screen.terminal.text.count("12/50 done") == 1
    screen.console.print("x" * 100)
    screen.terminal.feed("^C")
    screen.live.draw()
    assert screen.above == f"{'x' * 80}\n{'x' * 20}\n" and screen.terminal.text.count("-- run") == 1
    assert "^C" not in screen.terminal.text
    screen.live.close()
    assert screen.terminal.text == screen.above.strip() and screen.terminal.cursor_shown
    screen.console.print("after")
    assert screen.terminal.text.endswith(f"{'x' * 20}\nafter")


@pytest.mark.parametrize("sizes", [(40,), (40, 20), (40, 80), (79, 81)])
def test_a_resized_terminal_keeps_no_rest(state: RunState, time: Clock, sizes: tuple[int, ...]) -> None:
    busy(state, time)
    screen = Screen(state, height=60)
    screen.live.open()
    screen.console.print("said")
    for columns in sizes:
        screen.resize(columns)
        screen.live.draw()
        assert screen.above == "said\n" and screen.terminal.text.count("-- run") == 1
        assert all(len(row) < columns for row in screen.terminal.rows)
    screen.resize(30)
    screen.live.close()
    assert screen.terminal.text == "said"


def test_a_low_terminal_that_scrolls_keeps_what_was_said(state: RunState, time: Clock) -> None:
    busy(state, time)
    screen = Screen(state, height=8)
    screen.live.open()
    for number in range(20):
        screen.live.draw()
        screen.console.print(f"line {number}")
    screen.live.close()
    assert screen.terminal.text == "\n".join(f"line {number}" for number in range(20))


def test_threads_that_print_leave_no_stray_line(state: RunState) -> None:
    """The view grows and shrinks meanwhile, and is drawn all the time."""
    screen = Screen(state, height=40, refresh_sec=0.0005)

    def say(thread: int) -> None:
        for n in range(100):
            state.plan(n % 2, [])
            with screen.lock:
                screen.console.print(f"{thread}-{n:03d}")

    screen.live.open()
    threads = [threading.Thread(target=say, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    screen.live.close()
    assert sorted(screen.terminal.text.splitlines()) == [f"{t}-{n:03d}" for t in range(4) for n in range(100)]
