"""Agents in containers: settings that cannot work, outcomes, what a batch says about the agent, the pack's identity."""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.agent.context import AgentContext

from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.docker.box import listener
from harbortrainer.docker.box.artifacts import CollectedEnvironment
from harbortrainer.docker.box.listener import NoPython, ShutOut
from harbortrainer.docker.checks.preflight import Findings, capacity, check_memory, task_needs
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.learning.agents import by_agent, drawn, of_trial
from harbortrainer.learning.trajectory import Outcome, Trajectory, TrialName, Turn, group_trajectories
from harbortrainer.model_api.gate import check_agents
from harbortrainer.model_api.reply import Over
from harbortrainer.plugins import known
from harbortrainer.policy.sampler import PolicySampler, SamplingError
from harbortrainer.rollout.quarantine import UNANSWERED
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.agent_pack import KEY, NAME, agent_versions, check_pack, pack_digest, packed_version
from harbortrainer.venues.harbor import agent_session, installed
from harbortrainer.venues.harbor.agent_session import LAST_OUTPUT, AgentSession
from harbortrainer.venues.harbor.environment import check_agent_tasks, environment_config, with_agent
from harbortrainer.venues.harbor.program import MOUNT, agent_memory, check_agent, named
from tests.conftest import ROOT
from tests.support import agent_endings
from tests.support.families import QWEN, QWEN_TOOLS, chat_of
from tests.support.task_folder import write_task
from tests.support.tools import TOOLS
from tests.support.wire_parts import exchange_of

TURN = Turn(0, (1, 2), (3,), (-0.5,), 0)
MEMORY = "[environment]\nmemory_mb = 1024\n"


def config(**fields: Any) -> Config:
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": ".", "agent": "codex"}
    return Config(**given | fields)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "codex").write_text("#!/bin/sh\n")
    (folder / "codex.lock").write_text("one\n")
    return folder


def test_settings_that_cannot_work_are_refused_with_a_fix(tmp_path: Path, pack: Path) -> None:
    check_agent(config(agents_dir=str(pack)))
    check_agent(config(agent="terminus-2"))
    for given, why in (
        ({"agents_dir": str(tmp_path)}, r"agents_dir=\S+: it has no bin/codex; run scripts/agents/pack \S+ codex"),
        ({"environment_type": "daytona"}, "environment_type=daytona cannot reach this process"),
        ({"agent": "terminus-2", "agents_dir": "x"}, "agents_dir=x: agent=terminus-2 has none"),
        ({"agent": "terminus-2", "agent_kwargs": {"a": 1}}, "agent_kwargs={'a': 1}: agent=terminus-2 has none"),
        ({"agent": "terminus-2,codex", "environment_type": "daytona"}, "agent=codex: environment_type=daytona cannot"),
        (
            {"agent": "codex,opencode", "agents_dir": str(pack)},
            r"it has no bin/opencode; run scripts/agents/pack \S+ o",
        ),
        ({"agent": "terminus-2,codex", "agent_kwargs": {"a": 1}}, r"agent_kwargs=.*, and agent=terminus-2,codex names"),
    ):
        with pytest.raises(UserError, match=why):
            check_agent(config(**given))


def test_a_benchmark_names_the_agent_that_is_not_packed(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_endings, "PACK", pack)
    for bench, words in (
        ("agent_endings", ["--agents", "codex,qwen-coder"]),
        ("agent_trials", ["--agent", "qwen-coder"]),
    ):
        monkeypatch.setattr(sys, "argv", [bench, *words])
        with pytest.raises(SystemExit, match=r"^error: agents_dir=\S+: .*run scripts/agents/pack \S+ qwen-coder$"):
            importlib.import_module(f"bench.{bench}").main()
    with pytest.raises(SystemExit, match=r"^error: 'codec' is no agent; one of mini-swe-agent, codex"):
        agent_endings.demand_packed(["codec"])


def test_a_benchmark_names_an_ending_that_an_agent_does_not_have(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pack / "bin" / "opencode").write_text("#!/bin/sh\n")
    monkeypatch.setattr(agent_endings, "PACK", pack)
    monkeypatch.setattr(sys, "argv", ["agent_endings", "--agents", "codex,opencode", "--endings", "ok,context+"])
    with pytest.raises(
        SystemExit,
        match=r"^error: no full context of opencode is known .*; leave out 'context, may compact', or opencode$",
    ):
        importlib.import_module("bench.agent_endings").main()


def test_an_environment_gets_the_programs_and_their_memory(tmp_path: Path, pack: Path) -> None:
    task = write_task(tmp_path / "hello", toml=MEMORY)
    own = {"mounts": [{"type": "bind", "source": "/data", "target": "/data"}]}
    made = with_agent(environment_config("docker", own, task, "r"), task, config(agents_dir=str(pack)))
    assert made.override_memory_mb == 1024 + named("agent", "codex").memory_mb
    assert [(one["target"], one.get("read_only", False)) for one in made.mounts or ()] == [
        ("/data", False), (MOUNT, True),
    ]  # fmt: skip
    given = environment_config("docker", {"override_memory_mb": 3000}, task, "r")
    assert with_agent(given, task, config()).override_memory_mb == 3000
    unlimited = write_task(tmp_path / "free")
    assert with_agent(environment_config("docker", {}, unlimited, "r"), unlimited, config()).override_memory_mb is None
    assert with_agent(given, task, config(agent="terminus-2")) is given


def test_tasks_that_only_terminus_can_do_are_named(tmp_path: Path) -> None:
    files = {"environment/docker-compose.yaml": "services: {main: {image: x}}\n"}
    task = write_task(tmp_path / "other", files=files)
    with pytest.raises(UserError, match=r"task other has docker-compose\.yaml, for which only agent=terminus-2 works"):
        with_agent(environment_config("docker", {}, task, "r"), task, config())


def test_a_template_without_tools_is_refused_before_the_first_trial(tmp_path: Path, pack: Path) -> None:
    task = write_task(tmp_path / "hello")
    check_agent_tasks([task], config(agents_dir=str(pack)), chat_of(QWEN_TOOLS))
    with pytest.raises(UserError, match="tool_format=hermes"):
        check_agent_tasks([task], config(agents_dir=str(pack)), chat_of(QWEN))
    check_agent_tasks([task], config(agent="terminus-2"), chat_of(QWEN))


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


def test_an_agent_that_never_asked_shows_its_last_words() -> None:
    outcome, detail, reward = session(failure="noise " * 100 + "No module named mcp").classify(result())
    assert (outcome, reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert detail.startswith("the agent never asked the policy: ") and detail.endswith("No module named mcp")
    assert len(detail) < LAST_OUTPUT + 40
    assert session().classify(result())[1] == "the agent never asked the policy"


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
    with pytest.raises(UserError, match=f"^agent=codex: context_limit=2000: {words}; raise context_limit$"):
        ended.check_first_prompt("codex")


class Harbors(BaseInstalledAgent):
    """Stands for one of Harbor's agents: after its program it copies files whose size the policy decides."""

    @staticmethod
    def name() -> str:
        return "slow"

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            context.set()
            await asyncio.Event().wait()


def reads_a_list(context: AgentContext) -> None:
    _: Any = [][0]


def reads_a_cost(value: Any) -> Any:
    return lambda context: setattr(context, "cost_usd", value)


@pytest.mark.parametrize(
    ("reads", "size", "cost"),
    [
        (reads_a_cost(0.5), 0, 0.5),
        (reads_a_cost(0.5), 9, None),
        (reads_a_list, 0, None),
        (reads_a_cost("\ud800"), 0, None),
        (reads_a_cost([]), 0, None),
    ],
)
def test_what_harbor_reads_of_an_agents_log_can_be_stored(
    reads: Any, size: int, cost: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "LOG_BYTES", 8)
    (tmp_path / "session.jsonl").write_text("x" * size)
    made = type("Trained", (installed._Trainable, Harbors), {})
    monkeypatch.setattr(Harbors, "populate_context_post_run", lambda _, context: reads(context))
    agent = object.__new__(made)
    agent.logs_dir, agent.logger = tmp_path, logging.getLogger("test")
    agent.populate_context_post_run(context := AgentContext())
    assert (context.cost_usd, context.model_usage) == (cost, {})
    assert context.model_dump_json(warnings="error")


@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_agents_own_clean_up_takes_no_time_of_its_trial_and_no_cancellation(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "GRACE_SEC", 0.01)
    monkeypatch.setattr(installed, "CLEAN_SEC", 1000 if cancelled else 0.01)
    ended, cleans = session(TURN, stop_reason=""), asyncio.Event()
    ended.exchange.end("max_turns")
    agent = object.__new__(type("Trained", (installed._Trainable, Harbors), {}))
    agent._session = ended
    running = asyncio.create_task(agent.run("", None, cleans))
    await cleans.wait()
    if cancelled:
        running.cancel()
    done, _ = await asyncio.wait({running}, timeout=10)
    assert done and running.cancelled() is cancelled
    assert ended.stop_reason == "max_turns"


class Place(CollectedEnvironment):
    """An environment whose container is up, or gone."""

    def __init__(self, *, up: bool) -> None:
        self._up = up

    async def is_up(self, service: str | None = None) -> bool:
        return self._up


Place.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("up", [True, False])
async def test_a_container_in_which_no_command_runs_any_more_is_graded_while_it_is_up(
    up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any) -> None:
        raise RuntimeError("no shell in container c")

    monkeypatch.setattr(Harbors, "run", run)
    monkeypatch.setattr(installed, "GRACE_SEC", 0.01)
    agent = object.__new__(type("Trained", (installed._Trainable, Harbors), {}))
    agent._session = ended = session(TURN, stop_reason="")
    place: Any = Place
    with contextlib.nullcontext() if up else pytest.raises(RuntimeError, match="no shell"):
        await agent.run("", place(up=up), AgentContext())
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
    monkeypatch.setattr(listener, "engine", lambda: SimpleNamespace(inspect_container=lambda _: state))
    monkeypatch.setattr(agent_session, "listener_problem", lambda: "")
    opened: list[str] = []

    async def relay(container: str, *_: Any) -> Any:
        opened.append(container)

    monkeypatch.setattr(agent_session.Relay, "open", relay)
    one, endpoint = session(TURN), SimpleNamespace(open=lambda *_: "k")
    await replace(one, endpoint=endpoint).open("c")  # pyright: ignore[reportArgumentType]
    assert opened == ["c"]


@pytest.mark.parametrize("error", [ShutOut("the port is taken"), NoPython("container c has no python3")])
async def test_a_container_that_keeps_the_endpoint_out_only_later_is_the_policys_doing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [False]

    async def relay(*_: Any) -> Any:
        if fails[-1]:
            raise error

    monkeypatch.setattr(agent_session, "listener_problem", lambda: "not root")
    monkeypatch.setattr(agent_session.Relay, "open", relay)
    one = replace(session(TURN, stop_reason="policy_error"), endpoint=SimpleNamespace(open=lambda *_: "k"))  # pyright: ignore[reportArgumentType]
    await one.open("c")
    assert not one.exchange.ended.is_set()
    fails.append(True)
    await one.open("c")
    assert one.exchange.over == "policy_error" and one.exchange.ended.is_set()
    assert one.classify(result(0.5)) == (Outcome.POLICY_ERROR, str(error), 0.5)
    first = UserError if isinstance(error, NoPython) else ShutOut
    with pytest.raises(first, match=f"^{error}"):
        await replace(one, _was_open=False).open("c")


def trial(number: int, outcome: Outcome = Outcome.COMPLETED, detail: str = "", **stats: float) -> Trajectory:
    return Trajectory(f"t{number}", f"n{number}", (TURN,), 1.0, outcome, detail, stats={"wire_turns": 1.0} | stats)


def test_the_same_failure_in_a_fifth_of_a_batch_is_the_agents(caplog: pytest.LogCaptureFixture) -> None:
    fine = [trial(number) for number in range(11)]
    failed = [trial(n, Outcome.POLICY_ERROR, f"the agent failed: at 12:0{n} no such file /tmp/a{n}") for n in range(3)]
    with pytest.raises(EnvironmentFault, match="3 of 14 trials ended after one answer with: the agent failed: at #:#"):
        check_agents([*fine, *failed])
    check_agents([*fine, *fine, *failed])  # 12 %
    check_agents([*fine[:4], *failed[:2]])  # two may be chance
    titled = [replace(one, turns=(TURN, replace(TURN, segment=1)), side_segments=(0,)) for one in failed]
    with pytest.raises(EnvironmentFault, match="3 of 14 trials ended after one answer"):
        check_agents([*fine, *titled])
    check_agents([*fine, *(replace(one, turns=(TURN, TURN)) for one in failed)])  # they have worked before
    check_agents([replace(one, stats={}) for one in failed])  # Terminus-2
    assert caplog.text == ""


def test_a_wire_that_breaks_histories_is_warned_of_and_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    check_agents([trial(0, wire_foreign=1.0, wire_matched=19.0)])
    assert "1 of 20 histories" in caplog.text
    with pytest.raises(EnvironmentFault, match="10 of 20 histories"):
        check_agents([trial(0, wire_foreign=10.0, wire_matched=10.0)])


def test_a_run_continues_only_with_the_same_programs(pack: Path) -> None:
    one = config(agents_dir=str(pack))
    versions = {KEY: pack_digest(one)}
    check_pack(one, versions)
    (pack / "codex.lock").write_text("two\n")
    with pytest.raises(UserError, match="its programs of codex are not those that the run began with"):
        check_pack(one, versions)
    assert pack_digest(config()) == ""


SEVERAL = "terminus-2,codex,mini-swe-agent"


def of_step(step: int, seed: int = 0, groups: int = 6) -> list[str]:
    return [drawn(SEVERAL, seed, str(TrialName("step", step, problem, 0))) for problem in range(groups)]


def test_a_group_keeps_its_agent_and_a_batch_has_each_in_its_share() -> None:
    batches = [of_step(step) for step in range(20)]
    assert batches == [of_step(step) for step in range(20)]
    assert all(Counter(batch) == dict.fromkeys(SEVERAL.split(","), 2) for batch in batches)
    assert len({tuple(batch) for batch in batches}) == len({tuple(of_step(0, seed)) for seed in range(20)}) == 3
    trials = [TrialName("step", 4, 1, member, attempt) for member in range(8) for attempt in (1, 2)]
    assert {drawn(SEVERAL, 0, str(trial)) for trial in trials} == {batches[4][1]}
    held_out = [[drawn(SEVERAL, 0, str(TrialName("eval", step, n, 0))) for n in range(6)] for step in (0, 7)]
    assert held_out[0] == held_out[1]
    twice = Counter(drawn("codex,codex,terminus-2", 0, str(TrialName("step", 0, n, 0))) for n in range(9))
    assert twice == {"codex": 6, "terminus-2": 3}
    assert drawn("codex", 0, "any name") == "codex"


def test_a_trial_has_the_settings_of_its_own_agent() -> None:
    one = config(agent=SEVERAL)
    name = str(TrialName("step", 0, 0, 0))
    assert of_trial(one, name).agent == drawn(SEVERAL, one.seed, name) and of_trial(config(), name) == config()
    assert [each.agent for each in by_agent(one)] == SEVERAL.split(",")
    assert agent_memory(config(agent="terminus-2,codex")) == named("agent", "codex").memory_mb


def test_several_agents_are_checked_and_recorded_each(pack: Path) -> None:
    for name in ("codex", "opencode"):
        (pack / f"{name}.lock").write_text(f"sha {name}-1\n")
    both = config(agent="codex,opencode", agents_dir=str(pack))
    assert agent_versions(both)[NAME] == "codex codex-1, opencode opencode-1"
    versions = {KEY: pack_digest(both)}
    (pack / "opencode.lock").write_text("sha opencode-2\n")
    with pytest.raises(UserError, match="its programs of codex,opencode are not those"):
        check_pack(both, versions)
    with pytest.raises(UserError, match="agent=codec: unknown; did you mean codex"):
        validate(config(agent="terminus-2,codec"))


def test_an_agent_that_fails_by_itself_is_seen_beside_one_that_works() -> None:
    """One in nine trials of the batch, and all of its own."""
    groups = [TrialName("step", 0, problem, 0) for problem in range(27)]
    agents = "codex" + ",terminus-2" * 8
    broken = [name for name in groups if drawn(agents, 0, str(name)) == "codex"]
    trials = [
        Trajectory("t", str(name), (TURN,), 0.0, Outcome.POLICY_ERROR if name in broken else Outcome.COMPLETED,
                   "no route" if name in broken else "", stats={"wire_turns": 1.0})
        for name in groups
    ]  # fmt: skip
    check_agents(trials)
    rollouts = Rollouts(config(agent=agents), PolicySampler(), chat_of(QWEN), "run")
    with pytest.raises(EnvironmentFault, match="3 of 3 trials ended after one answer with: no route"):
        rollouts.refuse_all_lost([group_trajectories("t", trials)])


def test_the_agents_memory_counts_before_a_run_and_for_auto(tmp_path: Path) -> None:
    task, free = write_task(tmp_path / "hello", toml=MEMORY), write_task(tmp_path / "free")
    assert agent_memory(config()) == named("agent", "codex").memory_mb
    assert agent_memory(config(agent="terminus-2")) == 0
    assert task_needs(task, {}, 512).memory_mb == 1024 + 512
    assert task_needs(task, {"override_memory_mb": 700}, 512).memory_mb == 700
    assert task_needs(free, {}, 512).memory_mb == 0
    findings = Findings()
    check_memory([task_needs(task, {}, 512)], 2, 2048 << 20, findings)
    assert findings.warnings[0].startswith("2 environments at once may take 3072 MiB of memory")
    plain, beside = (
        capacity([task_needs(one, {}, mb) for one in (task, free)], 12288 << 20, 64, 10**6)[0] for mb in (0, 512)
    )
    assert (plain, beside) == (12, 7)  # of 9,216 MiB, 768 and 1,280 each


def test_the_runs_record_names_its_agent_with_the_packed_version(pack: Path) -> None:
    assert agent_versions(config(agents_dir=str(pack)))[NAME] == ""
    (pack / "codex.lock").write_text("0123abcd 0.169.0\n")
    assert agent_versions(config(agents_dir=str(pack)))[NAME] == "codex 0.169.0"
    assert packed_version(str(pack), "opencode") == packed_version(None, "codex") == ""


@pytest.mark.parametrize("agent", known("agents"))
def test_every_agent_has_a_lock_that_names_no_registry(agent: str) -> None:
    folder = ROOT / "scripts" / "agents" / agent
    texts = [path.read_text() for path in folder.iterdir()]
    assert texts and not any("://" in text for text in texts)
    if (lock := folder / "package-lock.json").is_file():
        packages = {name: one for name, one in json.loads(lock.read_text())["packages"].items() if name}
        assert packages and all(one["integrity"].startswith("sha512-") for one in packages.values())
