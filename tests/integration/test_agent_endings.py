"""How trials of agents end, each ending caused for real (tests/support/agent_endings.py): outcome, reward and delay.

By day the endings that another program does not show as well; by night all of them with every packed agent.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbortrainer.rollout.quarantine import SAMPLING
from tests.support.agent_endings import CASES, RUN, Ended, run_all
from tests.support.agent_shells import AGENTS, BESIDE, PACK, WORK, command
from tests.support.docker_parts import containers

BY_DAY = {
    "mini-swe-agent": ("ok", "deadline", "killed", "never asked"),
    "codex": ("ok", "fault"),
}
MOST_BEYOND_SEC = 6.0
KEYS = [(agent, name) for agent, shell in AGENTS.items() for name in (CASES if shell.full else ["ok"])]
_NIGHT = [pytest.param(*key, marks=pytest.mark.nightly) for key in KEYS if key[1] not in BY_DAY.get(key[0], ())]
EVERY = [*((agent, name) for agent, names in BY_DAY.items() for name in names), *_NIGHT]

pytestmark = pytest.mark.skipif(not (PACK / "bin").is_dir(), reason="scripts/setup.sh --agents makes the programs")
Endings = dict[tuple[str, str], Ended]


def packed(agent: str) -> bool:
    return (PACK / "bin" / command(agent)).is_file()


@pytest.fixture(scope="module")
def endings(
    docker_ready: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endings]:
    """Those that the selected tests look at, several trials at a time."""
    wanted = {
        (item.callspec.params["agent"], item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    }
    keys = [key for key in KEYS if key in wanted and packed(key[0])]
    yield asyncio.run(run_all(tmp_path_factory.mktemp("endings"), keys))
    assert containers(RUN) == []


@pytest.mark.parametrize(("agent", "name"), EVERY)
def test_an_ending_has_its_outcome_and_comes_in_time(agent: str, name: str, endings: Endings) -> None:
    if (agent, name) not in endings:
        pytest.skip(f"{agent} is not in {PACK}: scripts/agents/pack {PACK} {agent}")
    ended, case = endings[agent, name], CASES[name]
    trajectory = ended.trajectory
    assert (trajectory.outcome, trajectory.reward) == (case.outcome, case.reward), trajectory.detail
    assert ended.beyond is None or ended.beyond <= MOST_BEYOND_SEC
    _LOOKS.get(name, _nothing_more)(agent, ended)


def _nothing_more(agent: str, ended: Ended) -> None:
    assert ended.trajectory.side_segments == () and ended.stat("wire_foreign") == 0


def _solved(agent: str, ended: Ended) -> None:
    """Every prompt is exact, nothing is trained twice, and the key is in no file of the trial."""
    trajectory, seen = ended.trajectory, list[int]()
    own = [turn for turn in trajectory.turns if turn.segment not in trajectory.side_segments]
    prompts = [asked.prompt_T for asked in ended.client.requests]
    for turn in own:
        seen += turn.new_tokens_T
        assert seen in prompts
        seen += turn.completion_tokens_T
        assert (turn.segment, turn.weights_version) == (own[0].segment, 7)
    assert len(own) == len(WORK) + 1 and ended.stat("wire_tokens_per_unique_token") == 1.0
    folder = Path(trajectory.trial_dir)
    stored = json.loads((folder / "result.json").read_text())["agent_info"]
    packed_version = (PACK / f"{agent}.lock").read_text().split()[1]
    assert (stored["name"], stored["version"]) == (agent, packed_version)
    assert (folder / "agent" / "trajectory.json").is_file()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if ended.key in path.read_bytes()] == []


def _limited(agent: str, ended: Ended) -> None:
    assert ended.beyond is not None and ended.stat("wire_refused_400") >= 1
    own = [turn for turn in ended.trajectory.turns if turn.segment not in ended.trajectory.side_segments]
    assert len(own) == 2


def _full(agent: str, ended: Ended) -> None:
    assert ended.stat("wire_refused_400") >= 1 and len(ended.trajectory.turns) >= 2


def _lost(agent: str, ended: Ended) -> None:
    assert ended.trajectory.detail.startswith(SAMPLING) and "gone" in ended.trajectory.detail
    assert ended.beyond is not None


def _killed(agent: str, ended: Ended) -> None:
    assert ended.trajectory.detail.startswith("the agent failed: ")


def _silent(agent: str, ended: Ended) -> None:
    assert ended.trajectory.detail.startswith("the agent never asked the policy: ")
    assert "ModuleNotFoundError: No module named mcp" in ended.trajectory.detail
    assert ended.client.requests == []


def _beside(agent: str, ended: Ended) -> None:
    """What the policy asked itself got an answer and no loss."""
    side = {turn.text for turn in ended.trajectory.turns if turn.segment in ended.trajectory.side_segments}
    assert side == {BESIDE} and ended.stat("wire_side_turns") >= 1


def _flooded(agent: str, ended: Ended) -> None:
    _beside(agent, ended)
    assert ended.stat("wire_refused_429") >= 2 and ended.stat("wire_tokens_per_unique_token") == 1.0


def _asked_again(agent: str, ended: Ended) -> None:
    """The repeated request got the answer that its first connection lost."""
    assert ended.stat("wire_replayed") + ended.stat("wire_joined") >= 1
    assert ended.stat("wire_tokens_per_unique_token") == 1.0


_LOOKS = {
    "ok": _solved,
    "max turns": _limited,
    "context": _full,
    "context, may compact": _full,
    "fault": _lost,
    "killed": _killed,
    "never asked": _silent,
    "asks itself": _beside,
    "429": _flooded,
    "disconnected": _asked_again,
}
