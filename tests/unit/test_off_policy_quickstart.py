"""The comparison of quickstart runs: its settings are those of the script, its lines are the paired differences."""

from bench.off_policy_quickstart import Result, paired, quickstart
from harbortrainer.train import parse


def made(reward: float, held_out: dict[str, list[float]], seconds: float = 1.0) -> Result:
    return Result(144, seconds, reward, held_out, 2.0, 1.1)


def test_the_settings_are_those_of_the_script() -> None:
    words = quickstart("SETTINGS")
    config = parse([*words, "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "max_steps_off_policy=2", "seed=1"])
    assert (config.batch_size, config.group_size, config.n_epochs, config.max_turns) == (8, 6, 3, 4)
    assert len(config.eval_tasks) == 16
    assert all(name.isupper() for name in (word.partition("=")[0] for word in quickstart("SERVER")))


def test_differences_are_paired_by_seed_and_by_task() -> None:
    base = {seed: made(0.5 + 0.1 * seed, {"a": [0.0, 1.0], "b": [1.0, 1.0]}) for seed in (1, 2, 3)}
    same = {seed: made(one.reward + 0.01 * (seed - 2), one.held_out, 0.5) for seed, one in base.items()}
    lines = paired(base, same)
    assert lines[0].startswith("reward, paired by seed: +0.000 (-0.025 to +0.025)") and "chance" not in lines[0]
    assert "held out, paired by task over all seeds: +0.000" in lines[2]
    assert lines[3] == "trials: 432 and 432; time of a step: 0.50 x"
    better = {seed: made(one.reward + 0.2 + 0.001 * seed, one.held_out) for seed, one in base.items()}
    assert paired(base, better)[0].endswith("beyond chance")


def test_one_pair_has_no_interval() -> None:
    base, other = ({1: made(reward, {"a": [reward]})} for reward in (-0.5, 0.25))
    assert paired(base, other)[0] == "reward, paired by seed: +0.750 (no interval: one pair)"
