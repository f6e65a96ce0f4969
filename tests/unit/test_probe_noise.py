"""The whole probe on a server in this process whose logprobs and gradients are noisy, and on servers that differ."""

import pytest

from harbortrainer.probe.report import ProbeFindings
from tests.support.noisy_server import Numerics, probed
from tests.support.tiers import first

BFLOAT16 = 0.03  # nats a token: SmolLM2-135M in bfloat16 on an H200 (its KL of 4e-4)
NOISES = (0.0, 1e-3, BFLOAT16, 0.05)  # the second: float32 with TF32 products
NORMS = (3.0, 60.0, 0.5)
MEASURED = [*zip(NOISES, (3.0, 60.0, 0.5, 3.0), strict=True), (0.05, 60.0)]
MEASURED += [pair for pair in ((noise, norm) for noise in NOISES for norm in NORMS) if pair not in MEASURED]


def verdicts(findings: ProbeFindings) -> dict[str, str]:
    return {row.what: row.verdict for row in findings.rows if row.verdict != "info"}


@pytest.mark.parametrize(("noise", "norm"), first(3, MEASURED))
async def test_every_row_is_right_whatever_the_noise_and_the_gradient(noise: float, norm: float) -> None:
    seed = int(1000 * noise + norm)
    found = await probed(Numerics(noise, gradient=0.01 if noise else 0.0, norm=norm, seed=seed))
    assert {what: verdict for what, verdict in verdicts(found).items() if verdict != "same"} == {}
    assert len(verdicts(found)) == 21
    facts = found.to_facts()
    assert (facts.reduction, facts.prompt_logprobs) == ("sum", "leading_none")
    assert set(facts.adam.values()) == {True} and len(facts.adam) == 5
    assert facts.losses["ppo"] == facts.losses["cispo"] == ("clip_low_threshold", "clip_high_threshold")
    assert (facts.can_sample, facts.frozen_samplers, facts.sampling_keeps_training) == (True, True, True)


WRONG = {
    "learning_rate": "learning_rate",
    "beta2": "beta2",
    "eps": "eps",
    "grad_clip_norm": "grad_clip_norm",
    "clip settings": "ppo",
    "temperature": "sampler against trainer, temperature 0.5",
    "short": "prompt logprobs",
    "overwrites": "a late first sample leaves training alone (defect 1)",
    "shows through": "a used sampler stays frozen while training continues (defect 2)",
}


@pytest.mark.parametrize("noise", first(1, [BFLOAT16, 0.0]))
@pytest.mark.parametrize(("wrong", "row"), WRONG.items())
async def test_what_differs_is_found_under_noise(wrong: str, row: str, noise: float) -> None:
    found = await probed(Numerics(noise, gradient=0.01 if noise else 0.0, wrong=(wrong,)))
    assert verdicts(found)[row] == "differs"


@pytest.mark.parametrize("noise", first(1, [BFLOAT16, 0.0, 1e-3]))
async def test_a_server_that_averages_is_found_under_noise(noise: float) -> None:
    found = await probed(Numerics(noise, gradient=0.01 if noise else 0.0, wrong=("example mean",)))
    assert found.facts["reduction"] == "example_mean"


@pytest.mark.parametrize("noise", first(1, [BFLOAT16, 0.0]))
async def test_a_mean_over_the_datums_of_a_call_is_neither(noise: float) -> None:
    found = await probed(Numerics(noise, gradient=0.01 if noise else 0.0, wrong=("mean of a call",)))
    assert found.facts["reduction"] == "unknown"


@pytest.mark.parametrize(("wrong", "reduction"), [((), "sum"), (("example mean",), "example_mean")])
async def test_without_reported_norms_gains_decide(wrong: tuple[str, ...], reduction: str) -> None:
    found = await probed(Numerics(1e-3, gradient=0.01, reports_norm=False, wrong=wrong))
    assert found.facts["reduction"] == reduction


@pytest.mark.parametrize("noise", first(1, [BFLOAT16, 0.0]))
async def test_one_free_slot_is_enough(noise: float) -> None:
    assert set(verdicts(await probed(Numerics(noise, wrong=("one slot",)))).values()) == {"same"}


async def test_a_server_that_scores_no_prompts_can_still_sample() -> None:
    found = await probed(Numerics(wrong=("refuses prompts",)))
    assert verdicts(found)["prompt logprobs"] == "unusable"
    assert found.facts["can_sample"] and found.facts["prompt_logprobs"] == "refused"
