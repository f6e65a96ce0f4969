"""The live view: what the board counts, what the panel shows of it, how it is drawn."""

import threading
from dataclasses import replace

import pytest
from rich.cells import cell_len

from src.display.board import Board
from src.display.panel import Words, clock, panel, sparkline
from src.display.snapshot import Snapshot
from src.learning.trajectory import Outcome
from src.rollout.states import TrialState
from tests.terminal import ROW, trajectory

WORDS = Words("run", "cancels running trials, saves the weights and ends; a second one leaves at once")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock_of_board() -> Clock:
    return Clock()


@pytest.fixture
def board(clock_of_board: Clock) -> Board:
    return Board(clock_of_board)


def lines(now: Snapshot, width: int = 120, height: int = 40, words: Words = WORDS) -> list[str]:
    return ["".join(text for text, _ in line) for line in panel(now, words, width, height)]


def busy(board: Board, clock: Clock) -> Snapshot:
    """A run in the middle of everything."""
    for step in range(1, 13):
        board.stepped(step, 50, ROW | {"reward/mean": step / 20})
    board.evaluated(10, {"eval/reward_mean": 0.5, "eval/reward_stderr": 0.05, "time/evaluate": 30.0})
    board.begin("step", 48, "step 13: sampling")
    for member, state in enumerate(TrialState):
        board.moved(f"s000012-p07-g{member:02d}", state)
    board.finished(trajectory("s000012-p00-g00", 1.0))
    board.finished(trajectory("s000012-p00-g01", 0.0))
    board.finished(trajectory("s000012-p01-g00", 0.0))
    board.finished(trajectory("s000012-p02-g00", None, Outcome.INFRASTRUCTURE_ERROR))
    board.replaced("s000012-p02-g01")
    clock.now += 10
    board.sampled(500)
    clock.now += 10
    board.sampled(500)
    for number in range(4):
        board.event(f"trial s000012-p02-g0{number} is replaced: infrastructure_error: Docker does not answer")
    return board.look()


def test_the_board_counts_trials_by_state_and_groups_with_signal(board: Board, clock_of_board: Clock) -> None:
    trials = busy(board, clock_of_board).trials
    assert trials is not None
    assert (trials.total, trials.done, trials.failed, trials.replaced) == (48, 3, 1, 1)
    assert trials.states == dict.fromkeys(TrialState, 1) and trials.queued == 48 - 4 - 5
    assert (trials.with_signal, trials.groups) == (1, 2) and trials.reward == pytest.approx(1 / 3)
    for member in range(len(TrialState)):
        board.moved(f"s000012-p07-g{member:02d}", None)
    again = board.look().trials
    assert again is not None and not again.states and again.queued == 44


def test_the_board_estimates_from_past_steps(board: Board, clock_of_board: Clock) -> None:
    board.plan(10, [])
    assert board.look().to_come is None
    for step in (1, 2):
        board.begin("step", 4, "")
        clock_of_board.now += 100
        board.stepped(step, 10, ROW)
    assert board.look().to_come == pytest.approx(800)
    board.begin("step", 4, "")
    clock_of_board.now += 40
    assert board.look().to_come == pytest.approx(760)
    clock_of_board.now += 400
    assert board.look().to_come == pytest.approx(700), "a step that takes longer is not taken for the others"
    board.evaluated(2, {"eval/reward_mean": 0.5, "time/evaluate": 20.0})
    assert board.look().to_come == pytest.approx(8 * 110 - 110), "an evaluation in two steps"


def test_tokens_a_second_are_those_of_the_last_minute(board: Board, clock_of_board: Clock) -> None:
    board.begin("step", 4, "")
    board.sampled(600)
    assert board.look().tokens_per_second == 600
    clock_of_board.now = 30
    board.sampled(600)
    assert board.look().tokens_per_second == pytest.approx(40)
    clock_of_board.now = 1000
    assert board.look().tokens_per_second == 0
    trials = board.look().trials
    assert trials is not None and trials.tokens == 1200


def test_many_threads_may_tell_the_board(board: Board) -> None:
    board.begin("step", 10_000, "")

    def tell(thread: int) -> None:
        for n in range(1000):
            board.moved(f"{thread}-{n}", TrialState.SAMPLING)
            board.sampled(1)
            board.finished(trajectory(f"s-p{thread}-g{n}", 1.0))
            board.moved(f"{thread}-{n}", None)

    threads = [threading.Thread(target=tell, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        board.look()
    now = board.look()
    assert now.trials is not None and not now.trials.states
    assert (now.trials.done, now.trials.tokens, now.version) == (8000, 8000, 32001)


def test_an_earlier_process_is_remembered(board: Board) -> None:
    rows = [{"global_step": 0, "eval/reward_mean": 0.1}, {"global_step": 1, **ROW}, {"global_step": 2, **ROW}]
    board.plan(5, rows)
    now = board.look()
    assert (now.step, now.total_steps, now.rewards, now.held_out) == (2, 5, (0.25, 0.25), (0, 0.1, 0.0))
    assert now.to_come == pytest.approx(300)


def test_the_panel_shows_all_of_it(board: Board, clock_of_board: Clock) -> None:
    text = "\n".join(lines(busy(board, clock_of_board), words=replace(WORDS, spent="$1.20 of $5")))
    for shown in (
        "12/50 done", "step 13: sampling, 0:00:20", "0:00:20 so far", "to come", "estimate from the last 10 steps",
        "0.600", "▁", "█", "held-out 0.500 ± 0.050  after step 10", " 3/48 done", "failed 1", "replaced 1", "queued 39",
        "starting 1", "waiting 1", "sampling 1", "in command 1", "verifying 1", "1 of 2 so far with signal",
        "100 a second", "1,000 sampled in this batch", "$1.20 of $5", "s000012-p02-g03 is replaced", "a second one",
    ):  # fmt: skip
        assert shown in text, text


@pytest.mark.parametrize("height", [1, 2, 5, 10, 24, 60])
@pytest.mark.parametrize("width", [1, 8, 20, 40, 80, 200])
def test_the_panel_fits_any_terminal(board: Board, clock_of_board: Clock, width: int, height: int) -> None:
    now = busy(board, clock_of_board)
    board.event("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 300)
    for shown in (now, board.look(), Board().look()):
        drawn = lines(shown, width, height)
        assert 1 <= len(drawn) <= max(1, height)
        assert all(cell_len(line) <= max(1, width - 3) for line in drawn), drawn


def test_a_low_panel_keeps_steps_and_trials(board: Board, clock_of_board: Clock) -> None:
    now = busy(board, clock_of_board)
    assert lines(now, 40, 24)[-1].endswith("at once"), "what Ctrl-C does is whole"
    text = "\n".join(lines(now, 120, 4))
    assert "12/50 done" in text and "3/48 done" in text and "tokens" not in text


def test_sparkline_and_clock() -> None:
    assert sparkline([0, 1, 0.5]) == "▁█▅" and sparkline([0.3, 0.3]) == "▄▄" and sparkline([]) == ""
    assert (clock(0), clock(61.9), clock(100_000)) == ("0:00:00", "0:01:01", "27:46:40")
