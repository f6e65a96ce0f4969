"""How a trial of an agent in a container ended, as its exchange, its log and its container tell."""

import asyncio
import contextlib
import logging
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.agent.context import AgentContext

from harbortrainer.bundled.agents import installed
from harbortrainer.bundled.agents.listener import NoPython, ShutOut, listen_in
from harbortrainer.bundled.agents.session import LAST_OUTPUT, AgentSession
from harbortrainer.docker.box.artifacts import CollectedEnvironment
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Turn
from harbortrainer.model_api.reply import Over
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.rollout.quarantine import UNANSWERED
from tests.support.fake_engine import FakeEngine, use_engine
from tests.support.tools import TOOLS
from tests.support.virtual_time import in_virtual_time
from tests.support.wire_parts import exchange_of

TURN = Turn(0, (1, 2), (3,), (-0.5,), 0)


def result(reward: float | None = 1.0, fault: Any = None) -> Any:
    verified = None if reward is None else SimpleNamespace(rewards={"reward": reward})
    return SimpleNamespace(
        exception_info=fault, step_results=None, verifier_result=verified, verifier=None,
        trial_uri=Path("/nowhere").as_uri(), agent_execution=None,
    )  # fmt: skip


def session(
    *turns: Turn, stop_reason: str = "done", failure: str = "", fault: Exception | None = None, full: str = ""
) -> AgentSession:
    exchange, _ = exchange_of(["never"])
    exchange.conversation.turns.extend(turns)
    exchange.fault, exchange.full = fault, full
    return AgentSession(exchange, endpoint=None, key="k", failure=failure, stop_reason=stop_reason)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("given", "graded", "outcome", "reward", "detail"), [
    ({}, 1.0, Outcome.COMPLETED, 1.0, ""),
    ({"stop_reason": "max_turns", "failure": "x"}, 0.0, Outcome.MAX_TURNS, 0.0, ""),
    ({"stop_reason": "context_length"}, 1.0, Outcome.CONTEXT_LENGTH, 1.0, ""),
    ({"stop_reason": "timeout"}, 1.0, Outcome.AGENT_TIMEOUT, 1.0, ""),
    ({"stop_reason": "interrupted"}, 1.0, Outcome.AGENT_TIMEOUT, 1.0, ""),
    ({"failure": "exit 9:  Killed\nstderr: None"}, 1.0, Outcome.POLICY_ERROR, 1.0, "the agent failed: exit 9: Killed"),
    ({"full": "9 tokens", "failure": "x"}, 1.0, Outcome.CONTEXT_LENGTH, 1.0, ""),
    ({"full": "9 tokens", "stop_reason": "max_turns"}, 1.0, Outcome.MAX_TURNS, 1.0, ""),
    ({"fault": SamplingError("gone"), "failure": "x"}, 1.0, Outcome.INFRASTRUCTURE_ERROR, None, "sampling: gone"),
    ({"fault": ValueError("bug")}, 1.0, Outcome.INFRASTRUCTURE_ERROR, None, "ValueError: bug"),
    ({}, None, Outcome.VERIFIER_ERROR, None, "the verifier left no reward"),
])  # fmt: skip
def test_the_exchange_says_how_a_trial_ended(
    given: dict[str, Any], graded: float | None, outcome: Outcome, reward: float | None, detail: str
) -> None:
    assert session(TURN, **given).classify(result(graded)) == (outcome, detail, reward)


async def test_an_agent_whose_first_request_is_never_answered_is_the_servers_fault() -> None:
    asked = asyncio.Event()
    exchange, _ = exchange_of(lambda request: asked.set())
    asking = asyncio.create_task(exchange.say([{"role": "user", "content": "q"}], TOOLS))
    await asked.wait()
    exchange.end("timeout")
    await asyncio.wait({asking})
    ended = AgentSession(exchange, endpoint=None, key="k", stop_reason="timeout")  # pyright: ignore[reportArgumentType]
    assert isinstance(asking.exception(), Over)
    assert ended.classify(result(0.0)) == (Outcome.INFRASTRUCTURE_ERROR, UNANSWERED, None)


def test_an_agent_that_never_asked_in_its_time_shows_limit_and_log(tmp_path: Path) -> None:
    logs = tmp_path / "a trial" / "agent"
    logs.mkdir(parents=True)
    (logs / "codex.txt").write_text("noise\n" * 1000 + "waits for a key\n")
    os.utime(logs / "codex.txt", (2e9, 2e9))
    (logs / "setup.txt").write_text("set up")
    began = datetime(2026, 11, 24, tzinfo=UTC)
    ended = result()
    ended.trial_uri = (tmp_path / "a trial").as_uri()
    ended.agent_execution = SimpleNamespace(started_at=began, finished_at=began + timedelta(seconds=90))
    detail = session(stop_reason="timeout").classify(ended)[1]
    assert detail.startswith("the agent never asked the policy in the 90 s that it had (trial_timeout_sec, or")
    assert detail.endswith(": " + ("noise " * 50 + "waits for a key")[-LAST_OUTPUT:])
    assert session(failure="exit 1").classify(ended)[1] == "the agent never asked the policy: exit 1"
    assert session().classify(result())[1] == "the agent never asked the policy"


async def test_an_agent_that_got_a_title_and_no_answer_of_its_own_never_asked() -> None:
    """Its program failed, not the policy, which has done nothing yet."""
    exchange, _ = exchange_of(["A title"], context_limit=2000, may_compact=True)
    await exchange.say([{"role": "user", "content": "Title for: q"}])
    ended = AgentSession(exchange, endpoint=None, key="k", failure="exit 1", stop_reason="done")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Over):
        await exchange.say([{"role": "user", "content": "word " * 3000}], TOOLS)
    outcome, detail, reward = ended.classify(result(0.0))
    assert (outcome, reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    why = r"the prompt has \d{4,5} tokens and context_limit is 2000"
    words = f"the first prompt leaves no room for an answer: {why}"
    assert re.fullmatch(words, detail)


class Harbors(BaseInstalledAgent):
    """Stands for one of Harbor's agents."""

    @staticmethod
    def name() -> str:
        return "slow"


def trained(ended: AgentSession | None = None, **methods: Any) -> Any:
    """One with these methods, as it is trained."""
    agent: Any = object.__new__(type("Trained", (installed._Trainable, type("Own", (Harbors,), methods)), {}))
    agent._session = ended
    return agent


def reads_a_list(context: AgentContext) -> None:
    _: Any = [][0]


def reads_a_cost(value: Any) -> Any:
    return lambda context: setattr(context, "cost_usd", value)


@pytest.mark.parametrize(
    ("reads", "size", "cost"),
    [
        (reads_a_cost(0.5), 0, 0.5),
        (reads_a_cost(0.5), installed.LOG_BYTES + 1, None),
        (reads_a_list, 0, None),
        (reads_a_cost("\ud800"), 0, None),
        (reads_a_cost([]), 0, None),
    ],
)
def test_what_harbor_reads_of_an_agents_log_can_be_stored(
    reads: Any, size: int, cost: float | None, tmp_path: Path
) -> None:
    (tmp_path / "session.jsonl").write_bytes(bytes(size))
    agent = trained(populate_context_post_run=lambda _, context: reads(context))
    agent.logs_dir, agent.logger = tmp_path, logging.getLogger("test")
    agent.populate_context_post_run(context := AgentContext())
    assert (context.cost_usd, context.model_usage) == (cost, {})
    assert context.model_dump_json(warnings="error")


@pytest.mark.parametrize("cancelled", [True, False])
def test_an_agents_own_clean_up_takes_no_time_of_its_trial_and_no_cancellation(cancelled: bool) -> None:
    """After its program it copies files whose size the policy decides."""

    async def copies(_: Any, instruction: str, environment: Any, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            context.set()
            await asyncio.Event().wait()

    async def ends() -> None:
        ended, cleans = session(TURN, stop_reason=""), asyncio.Event()
        ended.exchange.end("max_turns")
        running = asyncio.create_task(trained(ended, run=copies).run("", None, cleans))
        await cleans.wait()
        if cancelled:
            running.cancel()
        await asyncio.wait({running})
        assert running.cancelled() is cancelled and ended.stop_reason == "max_turns"
        assert asyncio.get_running_loop().time() < (1 if cancelled else 3 * installed.CLEAN_SEC)

    in_virtual_time(ends())


class Place(CollectedEnvironment):
    """An environment whose container is up, or gone."""

    def __init__(self, *, up: bool) -> None:
        self._up = up

    async def is_up(self, service: str | None = None) -> bool:
        return self._up


Place.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("up", [True, False])
async def test_a_container_in_which_no_command_runs_any_more_is_graded_while_it_is_up(up: bool) -> None:
    async def run(*_: Any) -> None:
        raise RuntimeError("no shell in container c")

    ended = session(TURN, stop_reason="")
    place: Any = Place
    with contextlib.nullcontext() if up else pytest.raises(RuntimeError, match="no shell"):
        await trained(ended, run=run).run("", place(up=up), AgentContext())
    assert ended.failure == ("no shell in container c" if up else "")


@pytest.mark.parametrize("used", [False, True])
async def test_a_daemon_behind_a_forwarded_socket_is_reached_through_the_relay(
    used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ssh -L` gives the socket file of another machine's daemon: its processes have other numbers here, or none."""
    state = {
        "State": {"Pid": os.getpid() if used else 2**30},
        "HostnamePath": "/var/lib/docker/containers/0123/hostname",
    }

    class Engine(FakeEngine):
        def inspect_container(self, _: str) -> dict[str, Any]:
            return state

    use_engine(monkeypatch, Engine())
    assert listen_in("c", 1) is None
    one = replace(session(TURN), endpoint=SimpleNamespace(open=lambda *_: "k"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(DockerException, match="exec_create"):  # of the relay's program
        await one.open("c")


@pytest.mark.parametrize("error", [ShutOut("the port is taken"), NoPython("container c has no python3")])
async def test_a_container_that_keeps_the_endpoint_out_only_later_is_the_policys_doing(
    error: Exception,
) -> None:
    fails = [False]

    class Kept(AgentSession):
        async def _listen(self, container: str) -> None:
            if fails[-1]:
                raise error

    exchange, endpoint = session(TURN).exchange, SimpleNamespace(open=lambda *_: "k")
    one = Kept(exchange, endpoint, key="k", stop_reason="policy_error")  # pyright: ignore[reportArgumentType]
    await one.open("c")
    assert not one.exchange.ended.is_set()
    fails.append(True)
    await one.open("c")
    assert one.exchange.over == "policy_error" and one.exchange.ended.is_set()
    assert one.classify(result(0.5)) == (Outcome.POLICY_ERROR, str(error), 0.5)
    first = UserError if isinstance(error, NoPython) else ShutOut
    with pytest.raises(first, match=f"^{error}"):
        await replace(one, _was_open=False).open("c")
