"""Which of several vLLM servers computes a sample."""

from repairs.vllm_client import Vllm
from repairs.vllm_replicas import BLOCK, Replicas
from tests.support.fake_vllm import KEY


async def servers(count: int) -> list[Vllm]:
    return [Vllm(f"http://127.0.0.1:{port}", KEY) for port in range(1, count + 1)]


async def test_turns_of_a_trial_stay_where_their_prefix_is() -> None:
    choose = Replicas(await servers(2)).choose
    trials = [tuple(range(trial, trial + 2 * BLOCK)) for trial in range(10)]
    first = [choose(prompt, "a") for prompt in trials]
    for _ in range(3):
        trials = [(*prompt, *range(BLOCK)) for prompt in trials]
        assert [choose(prompt, "a") for prompt in trials] == first


async def test_a_full_replica_hands_a_prefix_over() -> None:
    replicas = Replicas(await servers(2))
    prompt = tuple(range(2 * BLOCK))
    known = replicas.choose(prompt, "a")
    known.in_flight = 3
    assert replicas.choose(prompt, "a") is known, "3 against 0: not yet"
    known.in_flight = 8
    other = replicas.choose(prompt, "a")
    assert other is not known
    known.in_flight = 0
    assert replicas.choose(prompt, "a") is other, "the prefix is there now"


async def test_another_adapter_finds_no_prefix_and_goes_to_the_least_loaded() -> None:
    replicas = Replicas(await servers(2))
    prompt = tuple(range(2 * BLOCK))
    known = replicas.choose(prompt, "a")
    known.in_flight = 1
    assert replicas.choose(prompt, "b") is not known
    assert replicas.choose(prompt, "a") is known
