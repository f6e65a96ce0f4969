"""How trials of agents in containers end: real programs in Harbor's trials without a network, with a scripted policy.

One row of AGENTS (agent_shells.py) a program, one of CASES an ending. `run` plays one; `run_all` plays several at once.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from harbortrainer.bundled.agents.address import PORT
from harbortrainer.bundled.agents.session import AgentService, AgentSession
from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.keeping import cleaning
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.model_api.service import ModelApi
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.venue import RunParts
from harbortrainer.venues.harbor.trial import LocalHost
from tests.support.agent_shells import AGENTS, BESIDE, HELLO, PACK, call, command, script
from tests.support.fakes import Request, ScriptedClient
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.trial_parts import TASK_TOML, make_task, request

RUN = f"test-agents-{os.getpid()}"
AT_ONCE = 4
TEST = f"""[ "$(cat /app/hello.txt 2>/dev/null)" = Hello ] && r=1 || r=0
(exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null && r=0.5 && echo the endpoint is open
echo $r > /logs/verifier/reward.txt
"""
SELF = '{"messages":[{"role":"user","content":"hi"}]}'
ASK = (  # bash that calls the model API with its own agent's key, without another program
    f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n"
    f"Authorization: Bearer %s\\r\\nContent-Length: {len(SELF)}\\r\\nConnection: close\\r\\n\\r\\n%s' "
    f"\"${{OPENAI_API_KEY:-$ANTHROPIC_API_KEY}}\" '{SELF}' >&3; cat <&3"
)
KILL = (  # its pattern does not match the command line that it stands in
    "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline | grep -q '/opt/[a]gents' && kill -9 ${p#/proc/}; done; "
    "sleep 5"
)
SPOIL = (  # the agent's log: JSON of another form, and no text
    "for f in $(find /logs/agent -type f); do echo '[1]' > $f; done; printf '\\377' > /logs/agent/trajectory.json"
)
_NUMBERS = itertools.count()  # each trial of this process has a name of its own
Said = Callable[[Request], Any] | Sequence[str]


class Live:
    """A trial that runs. `session`: once it has begun; `over_at`: seconds since 1970 at which a limit ended it."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.session: AgentSession | None = None
        self.over_at: float | None = None
        self.beside: Callable[[Live], Any] = lambda live: BESIDE  # answers requests without tools
        self._watch: asyncio.Task[None] | None = None

    def begin(self, session: AgentSession) -> None:
        self.session = session
        self._watch = asyncio.create_task(self._note())

    async def _note(self) -> None:
        assert self.session is not None
        await self.session.exchange.ended.wait()
        if self.session.exchange.over != "closed":
            self.over_at = time.time()

    def deadline_in(self, seconds: float) -> None:
        assert self.session is not None
        self.session.exchange.deadline = asyncio.get_running_loop().time() + seconds

    def drop_connections(self) -> None:
        """End every connection of this process's model APIs, as a failing network would."""
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # a file that is closed meanwhile, a socket that listens
                if os.readlink(link).startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(link.name))) as one:
                        if one.getsockname() == ("127.0.0.1", PORT) and one.getpeername():
                            one.shutdown(socket.SHUT_RDWR)


@dataclass
class _Watched(AgentService):
    """The service of one trial, `live`."""

    live: Live = field(default_factory=lambda: Live(""))

    @contextlib.asynccontextmanager
    async def session(self, conversation: Conversation, config: Config) -> AsyncIterator[AgentSession]:
        async with super().session(conversation, config) as made:
            self.live.begin(made)
            yield made


@dataclass(frozen=True, slots=True)
class Ended:
    """`beyond`: seconds from the trial's limit to the end of the agent's phase, None = it reached none."""

    trajectory: Trajectory
    client: ScriptedClient
    key: bytes
    beyond: float | None

    def stat(self, name: str) -> float:
        return self.trajectory.stats.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """`says`: the policy of a trial; `fields`: of Config, from the agent and an empty folder; `reward`: None = none."""

    says: Callable[[Live], Said]
    outcome: Outcome
    reward: float | None = 1.0
    fields: Callable[[str, Path], Mapping[str, Any]] = field(default=lambda agent, folder: {})
    attempts: int = 1  # of the sampler
    alone: bool = False  # it disturbs trials beside it


def solves(live: Live) -> Said:
    return script(live.agent)


def _runs(command: str) -> Callable[[Live], Said]:
    """The same command for ever."""
    return lambda live: [call(live.agent, command)]


def _then_lost(live: Live) -> Said:
    said = iter([call(live.agent, HELLO)])

    def answer(_: Request) -> str:
        try:
            return next(said)
        except StopIteration:
            raise ConnectionError("gone") from None

    return answer


def _lost_once(live: Live) -> Said:
    said = iter([ConnectionError("gone"), *script(live.agent, [HELLO])])

    def answer(_: Request) -> str:
        found = next(said)
        if isinstance(found, Exception):
            raise found
        return found

    return answer


def _late(live: Live) -> Said:
    """The deadline comes during a command."""

    def answer(_: Request) -> str:
        live.deadline_in(3)
        return call(live.agent, f"{HELLO}; sleep 500")

    return answer


def _malformed(live: Live) -> Said:
    return [call(live.agent, HELLO), '<tool_call>\n{"name": "no JSON', "I think about it.", "And again."]


def _asks_itself(live: Live) -> Said:
    return script(live.agent, [f"bash -c {shlex.quote(ASK)}", HELLO])


def _floods(live: Live) -> Said:
    """Five requests of its own at once: one of them is refused, then the agent's; then the other four are answered."""
    flood = f"for n in 1 2 3 4 5; do ({ASK}) > /tmp/asked$n 2>&1 & done; until grep -q ' 429 ' /tmp/asked*; do :; done"
    live.beside = _held
    return script(live.agent, [f"bash -c {shlex.quote(flood)}", HELLO])


async def _held(live: Live) -> str:
    assert live.session is not None
    while live.session.exchange.stats.get("wire_refused_429", 0.0) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return BESIDE


def _disconnects(live: Live) -> Said:
    """The first request loses its connection while it is sampled; its answer waits until it is asked again."""
    said = iter(script(live.agent, [HELLO]))
    asked = itertools.count()

    async def dropped(text: str) -> str:
        live.drop_connections()
        assert live.session is not None
        while live.session.exchange.stats.get("wire_joined", 0.0) < 1 and not live.session.exchange.ended.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return text

    return lambda request: next(said) if next(asked) else dropped(next(said))


def _breaks(agent: str, folder: Path) -> dict[str, Any]:
    """A pack whose program breaks before its first call, as Harbor's own install of mini-swe-agent does."""
    (folder / "pack" / "bin").mkdir(parents=True)
    program = folder / "pack" / "bin" / command(agent)
    program.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named mcp\nexit 1\n")
    program.chmod(0o755)
    return {"agents_dir": str(folder / "pack")}


def small(agent: str, folder: Path) -> dict[str, Any]:
    return {"context_limit": AGENTS[agent].full, "max_tokens": 500, "max_turns": 50}


def small_compacting(agent: str, folder: Path) -> dict[str, Any]:
    return {**small(agent, folder), "enable_summarize": True}


def _fills(live: Live) -> Said:
    return [call(live.agent, f"{HELLO}; seq {AGENTS[live.agent].full // 32}")]


CASES = {
    "ok": Case(solves, Outcome.COMPLETED),
    "max turns": Case(_runs(HELLO), Outcome.MAX_TURNS, fields=lambda agent, folder: {"max_turns": 2}),
    "context": Case(_fills, Outcome.CONTEXT_LENGTH, fields=small),
    "context, may compact": Case(_fills, Outcome.CONTEXT_LENGTH, fields=small_compacting),
    "deadline": Case(_late, Outcome.AGENT_TIMEOUT),
    "fault": Case(_then_lost, Outcome.INFRASTRUCTURE_ERROR, None),
    "fault once": Case(_lost_once, Outcome.COMPLETED, attempts=2),
    "429": Case(_floods, Outcome.COMPLETED),
    "killed": Case(_runs(f"{HELLO}; {SPOIL}; {KILL}"), Outcome.POLICY_ERROR),
    "never asked": Case(lambda live: ["never"], Outcome.INFRASTRUCTURE_ERROR, None, _breaks),
    "malformed": Case(_malformed, Outcome.COMPLETED),
    "asks itself": Case(_asks_itself, Outcome.COMPLETED),
    "disconnected": Case(_disconnects, Outcome.COMPLETED, alone=True),
}


async def run(
    folder: Path,
    agent: str,
    says: Callable[[Live], Said],
    *,
    network: str = "no-network",
    attempts: int = 1,
    steps: Sequence[str] = (),
    image: str = "",
    **fields: Any,
) -> Ended:
    """One trial in an empty folder. `steps`: the tests of each step of its task; () = it has no steps.

    `image`: more lines of its Dockerfile.
    """
    template = chat_of(QWEN_TOOLS)
    live = Live(agent)
    client, sampler = ScriptedClient(_answering(says(live), live, template), template), PolicySampler(attempts=attempts)
    sampler.publish(client, 7)
    given: dict[str, Any] = {
        "model_name": "fake/policy", "tasks_dir": ".", "agent": agent, "agents_dir": str(PACK), "max_turns": 9,
        "context_limit": 300_000, "trial_timeout_sec": 3000.0,
    }  # fmt: skip
    config = Config(**given | fields)
    task = make_task(folder, test=TEST)
    toml = TASK_TOML.format(agent_timeout=1500.0) + f'network_mode = "{network}"\n'
    toml += "".join(f'[[steps]]\nname = "s{number}"\n' for number in range(len(steps)))
    (folder / task.name / "task.toml").write_text(toml)
    with (folder / task.name / "environment" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write(image)
    for number, test in enumerate(steps):
        step = folder / task.name / "steps" / f"s{number}"
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text(f"Write Hello to hello.txt, step {number}.\n")
        (step / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}")
    service = _Watched(ModelApi(), Prompts(template), live=live)
    host = LocalHost(
        RunParts(config, sampler, template, RUN, Gates.of(config)), Daemon(config.outage_limit_sec), agents=service
    )
    async with service.endpoint:
        trajectory = await host.run(request(task, folder, f"t-{next(_NUMBERS)}"))
    assert live.session is not None
    return Ended(trajectory, client, live.session.key.encode(), _beyond(live.over_at, Path(trajectory.trial_dir)))


def _answering(said: Said, live: Live, template: ChatTemplate) -> Callable[[Request], Any]:
    """By `said` to requests with tools: in order, the last for ever."""
    texts = said if callable(said) else itertools.chain(said, itertools.repeat(said[-1]))

    def answer(asked: Request) -> Any:
        if "<tools>" not in template.tokenizer.decode(asked.prompt_T):
            return live.beside(live)
        return texts(asked) if callable(texts) else next(texts)

    return answer


def _beyond(over_at: float | None, folder: Path) -> float | None:
    phase = json.loads((folder / "result.json").read_text())["agent_execution"]
    if over_at is None or phase is None:  # each step has its own
        return None
    return datetime.fromisoformat(phase["finished_at"]).timestamp() - over_at


async def run_case(folder: Path, agent: str, name: str) -> Ended:
    """One ending in a new folder below this one."""
    case, own = CASES[name], Path(tempfile.mkdtemp(dir=folder))
    return await run(own, agent, case.says, attempts=case.attempts, **case.fields(agent, own))


async def run_all(folder: Path, cases: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Ended]:
    """(agent, name of an ending) -> how it went. AT_ONCE at a time, so that one's waiting is another's work."""
    few = asyncio.Semaphore(AT_ONCE)

    async def ended(agent: str, name: str) -> Ended:
        async with few:
            return await run_case(folder, agent, name)

    wanted = list(cases)
    beside = [key for key in wanted if not CASES[key[1]].alone]
    try:
        found = dict(zip(beside, await asyncio.gather(*(ended(*key) for key in beside)), strict=True))
        for key in wanted:
            if CASES[key[1]].alone:
                found[key] = await ended(*key)
    finally:
        await cleaning.drain()
    return found
