"""Agents for containers in real trials: what is refused, and a trial with a network. Endings: test_agent_endings.py."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harbortrainer.docker import cleaning
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome
from tests.support.agent_endings import HELLO, PACK, RUN, run, script, solves
from tests.support.docker_parts import containers

pytestmark = pytest.mark.skipif(not (PACK / "bin").is_dir(), reason="scripts/setup.sh --agents makes the programs")


@pytest.fixture(autouse=True)
async def nothing_left(docker_ready: str) -> AsyncIterator[None]:
    yield
    await cleaning.drain()
    assert containers(RUN) == []


@pytest.mark.nightly
async def test_an_agent_is_answered_in_a_trial_with_a_network_too(tmp_path: Path) -> None:
    ended = await run(tmp_path, "mini-swe-agent", lambda live: script(live.agent, [HELLO]), network="public")
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, 1.0, "")
    assert len(trajectory.turns) == 2


async def test_a_program_that_is_nowhere_stops_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its image has no program codex; set agents_dir=FOLDER"):
        await run(tmp_path, "codex", lambda live: ["never"], agents_dir=None)


async def test_an_agent_whose_first_prompt_fills_the_context_is_refused_with_the_number(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"first prompt has \d{4} tokens of context_limit=5000; give at least context_l"
    ):
        await run(tmp_path, "mini-swe-agent", solves, context_limit=5000, max_tokens=500)
