"""`n_parallel_envs=auto` against simulated servers and container hosts: where it settles, and how far it swings."""

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from harbortrainer.rollout.level import DECREASE, FIRST, Level, Why, Window

WINDOWS_TO_SETTLE = 20
OF_THE_KNEE = 0.75
SWING, NOISY_SWING = 2.0, 4.0  # largest over smallest limit once settled, without the extreme windows
TURN = 1.0  # seconds of an agent's turn outside of the sampler

Curve = Callable[[int], float]  # agents at once -> seconds of an answer


def knee(capacity: int) -> Curve:
    """Answers take one second up to `capacity` agents at once; beyond that requests wait for each other."""
    return lambda agents: max(1.0, agents / capacity * (1 + TURN) - TURN)


def waves(seats: int) -> Curve:
    """As measured on one H200: a wave of one takes 0.54 s, a full one of 64 seats 0.82 s; the rest wait for another."""
    return lambda agents: (0.54 + 0.28 * min(agents, seats) / seats) * max(1.0, agents / seats)


def collapsing(capacity: int) -> Curve:
    """Beyond `capacity` the server also throws work away."""
    return lambda agents: max(1.0, (agents / capacity) ** 2 * (1 + TURN) - TURN)


def slow_host(capacity: int) -> Curve:
    """The sampler keeps up; with more than `capacity` agents commands take the longer, which the sampler never sees."""
    return knee(capacity)


def window(level: Level, answer: Curve, noise: Callable[[], float], *, seen: bool = True) -> Window:
    """`seen`: the sampler's own latency grows, not the commands'."""
    seconds = answer(level.limit)
    return Window(level.limit / (seconds + TURN) * noise(), (seconds if seen else 1.0) / 50 * noise())


def course(level: Level, answer: Curve, windows: int, sigma: float = 0.0, seed: int = 0, **how: bool) -> list[int]:
    rng, limits = random.Random(seed), []
    for _ in range(windows):
        limits.append(level.limit)
        level.judge(window(level, answer, lambda: rng.lognormvariate(0, sigma), **how))
    return limits


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.0, 0.03, 0.08])
@pytest.mark.parametrize("capacity", [12, 40, 100, 333])
@pytest.mark.parametrize("kind", [knee, waves, collapsing, slow_host])
def test_it_settles_near_the_best(kind: Callable[[int], Curve], capacity: int, sigma: float, seed: int) -> None:
    answer, most = kind(capacity), 512
    limits = course(Level(most), answer, 100, sigma, seed, seen=kind is not slow_host)
    rates = [agents / (answer(agents) + TURN) for agents in limits[WINDOWS_TO_SETTLE:]]
    assert fmean(rates) >= OF_THE_KNEE * capacity / (answer(capacity) + TURN)
    assert max(limits) <= most
    usual = sorted(limits[WINDOWS_TO_SETTLE:])[4:-4]  # the extreme ones are tries that failed
    assert max(usual) <= (NOISY_SWING if sigma else SWING) * min(usual), limits


@pytest.mark.parametrize("kind", [knee, collapsing, slow_host])
def test_a_server_with_room_for_fewer_than_the_first_gets_fewer(kind: Callable[[int], Curve]) -> None:
    limits = course(Level(64), kind(3), 40, seen=kind is not slow_host)
    assert fmean(limits[30:]) <= 4


def test_it_never_exceeds_its_bound_and_reaches_it_where_that_pays() -> None:
    for most in (1, 5, 8, 20, 61):
        limits = course(Level(most), knee(1000), 30)
        assert max(limits) == most and limits[0] == min(FIRST, most)


def test_it_doubles_while_tokens_grow_then_adds() -> None:
    limits = course(Level(1000), knee(100), 8)
    assert limits[:6] == [8, 16, 32, 64, 128, 256] and limits[6] == 128, "the try of 256 did not pay"
    level = Level(1000, 100)
    assert course(level, knee(10_000), 4) == [100, 125, 150, 175], "continued: the same number more in each window"


def test_slow_containers_decrease_it_and_it_comes_back() -> None:
    level = Level(100)
    answer = knee(40)
    course(level, answer, 20)
    before = level.limit
    assert level.slow_starts() and level.limit == int(DECREASE * before) and level.why is Why.SLOW_STARTS
    assert max(course(level, knee(200), 10)) > before


def test_longer_answers_without_more_tokens_decrease_it() -> None:
    """A server that another run begins to use has room for half as many."""
    level = Level(512)
    course(level, knee(80), 20)
    before, seen = level.limit, set[Why]()
    for _ in range(40):
        level.judge(window(level, knee(20), lambda: 1.0))
        seen.add(level.why)
    assert level.limit <= before / 2 and Why.LATENCY in seen


def test_longer_trials_alone_change_nothing() -> None:
    """Fewer tokens a second at the same latency: commands and tests take longer, whatever the limit is."""
    level = Level(48)
    course(level, knee(48), 20)
    before = level.limit
    slower = [level.limit for _ in range(20) if level.judge(Window(level.limit / 10, 1 / 50)) or True]
    assert min(slower) >= DECREASE * before and slower[-1] >= DECREASE * before


def test_a_try_that_no_trials_fill_is_taken_back() -> None:
    level = Level(64)
    level.judge(window(level, knee(64), lambda: 1.0))
    assert level.limit == 16 and level.unused() and (level.limit, level.why) == (8, Why.UNUSED)
    assert not level.unused(), "nothing to take back"


def test_every_reason_has_words() -> None:
    assert len({why.words for why in Why}) == len(Why)
