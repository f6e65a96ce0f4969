"""A server that says what it repairs is only asked to confirm it; one that does not keep it is measured whole."""

import pytest

from harbortrainer.probe import promises
from harbortrainer.probe.report import ProbeFindings
from harbortrainer.probe.session import ProbeSession
from server.repairs import NAMES
from tests.support.noisy_server import Numerics, probed


async def confirmed(numerics: Numerics) -> tuple[bool, ProbeFindings]:
    answers = []

    async def measure(session: ProbeSession, findings: ProbeFindings) -> None:
        answers.append(await promises.confirm(session, findings))

    findings = await probed(numerics, measure=measure)
    return answers[0], findings


def test_our_server_promises_unless_a_repair_is_left_out():
    assert promises.promised({"repairs": list(NAMES)})
    assert not promises.promised({"repairs": [name for name in NAMES if name != "loss_sum"]})
    assert not promises.promised({})


async def test_what_is_confirmed_is_what_the_whole_probe_finds():
    kept, short = await confirmed(Numerics())
    assert kept
    assert short.to_facts() == (await probed(Numerics())).to_facts()


@pytest.mark.parametrize("wrong", ["example mean", "mean of a call", "temperature", "short", "refuses prompts"])
async def test_a_promise_that_is_not_kept_is_not_confirmed(wrong: str):
    kept, _ = await confirmed(Numerics(wrong=(wrong,)))
    assert not kept


async def test_without_reported_norms_sums_are_not_confirmed():
    kept, _ = await confirmed(Numerics(reports_norm=False))
    assert not kept
