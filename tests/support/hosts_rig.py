"""A driver and its hosts in one process, linked by calls that can be cut, by the event loop's own clock."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, override

from harbortrainer.bundled.hosts.messages import Job, MachineFacts, pack_folder
from harbortrainer.bundled.hosts.node import Node
from harbortrainer.bundled.hosts.remote import HostLost, RemoteHost
from harbortrainer.config import Config
from harbortrainer.docker.checks.host import ServiceHost as NoDocker
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.fleet import Fleet
from harbortrainer.rollout.gates import Gates, TrialObserver, TrialState
from harbortrainer.rollout.venue import RunParts, TrialCancelled, TrialRequest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.room import HarborRoom
from harbortrainer.venues.harbor.trial import new_trial
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.fakes import chat_template, response
from tests.support.virtual_time import VirtualLoop

SILENCE = 8.0
FACTS = MachineFacts(("id", "/data"), "20", {})
TURN = Turn(0, (1, 2), (3, 4), (-0.5, -0.25), 7)


class Loop(VirtualLoop):
    """No thread runs beside it: time would jump meanwhile."""

    @override
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        done = self.create_future()
        done.set_result(func(*args))
        return done

    @override
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(work())


def virtually(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test in virtual time."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        in_virtual_time(lambda: test(tmp_path))

    return run


class Client:
    """A sampling client that can travel. Its requests last `seconds`; `asked` has the time of each."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.asked = seconds, list[float]()
        self.lost = asyncio.Event()

    def portable(self) -> "Client":
        return self

    def open(self, config: Config) -> "Client":
        return self

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        return response([3, 4])


class Wire:
    """A link to a node in the same process. `cut`: nothing arrives, and nothing comes back."""

    def __init__(self, node: Any) -> None:
        self.node, self.killed = node, False
        self.whole = asyncio.Event()
        self.whole.set()

    async def call(self, method: str, *args: Any) -> Any:
        await self.whole.wait()
        if self.killed:
            raise HostLost("ActorDiedError")
        result = await getattr(self.node, method)(*args)
        await self.whole.wait()
        return result

    def kill(self) -> None:
        if self.whole.is_set():
            self.killed = True

    def cut(self) -> None:
        self.whole.clear()


class Room(HarborRoom):
    """A trial samples until it has `turns` turns, or is cancelled."""

    def __init__(self, run: RunParts, turns: int) -> None:
        super().__init__(run, NoDocker(), new_trial)
        self.sampler, self.turns, self.removed = run.sampler, turns, 0
        self.local.run = self._trial
        self.fault: Exception | None = None

    @contextlib.asynccontextmanager
    async def prepared(self, tasks: Any, say: Any):
        yield

    async def _trial(self, request: TrialRequest) -> Trajectory:
        turns = []
        try:
            for _ in range(self.turns):
                if self.fault is not None:
                    raise self.fault
                sample = await self.sampler.sample([1, 2], max_tokens=9, temperature=1.0, stop=[])
                turns.append(Turn(0, (1, 2), sample.tokens_T, sample.logprobs_T, sample.version))
        except asyncio.CancelledError:
            self.removed += 1
            raise TrialCancelled(tuple(turns)) from None
        folder = request.trials_dir / request.name
        folder.mkdir(parents=True)
        (folder / "result.json").write_text("{}")
        return Trajectory(request.task.name, request.name, tuple(turns), 1.0, Outcome.COMPLETED)


class Venue(HarborVenue):
    turns = 3
    made: Room

    def check(self, tasks: Any, config: Config, template: Any, n_trials: int) -> list[str]:
        return []

    def room(self, run: RunParts) -> Room:
        Venue.made = Room(run, self.turns)
        return Venue.made


class States(TrialObserver):
    def __init__(self) -> None:
        self.tokens, self.seen = 0, list[tuple[str, TrialState | None]]()

    def moved(self, trial_name: str, state: TrialState | None) -> None:
        self.seen.append((trial_name, state))

    def sampled(self, tokens: int) -> None:
        self.tokens += tokens


class Rig:
    """A driver's fleet with one host, whose node runs in the same process."""

    def __init__(self, folder: Path, turns: int = 3) -> None:
        self.folder = folder
        self.config = Config(model_name="m", tasks_dir=".", n_parallel_envs=4)
        self.sampler, self.observer = PolicySampler(), States()
        self.gates = Gates.of(self.config)
        self.run = RunParts(self.config, self.sampler, chat_template(), "run", self.gates, self.observer)
        self.fleet = Fleet(self.gates.containers, 60.0)
        self.sampler.follow(self.fleet)
        path = folder / "tasks" / "hello"
        path.mkdir(parents=True)
        self.task = Task("hello", path, "d1")
        self.client = Client()
        self.turns, self.left = turns, list[float]()
        self.hosts: list[RemoteHost] = []

    async def join(self) -> RemoteHost:
        venue = Venue()
        Venue.turns = self.turns
        job = Job(self.config, "run", venue, lambda _: chat_template(), 4, False, SILENCE)
        self.node = Node(
            job, lambda: self.left.append(asyncio.get_running_loop().time()), lambda: FACTS, lambda _: None
        )
        self.wire = Wire(self.node)
        host = RemoteHost(
            f"h{len(self.hosts)}", self.wire, 4, self.run, SILENCE, lambda one: self.fleet.leave(one, one.quiet_at)
        )
        await host.start()
        await host.ask("add", self.task, pack_folder(Path(self.task.ref)))
        await host.ask("prepare")
        self.hosts.append(host)
        self.fleet.join(host)
        return host

    def request(self, member: int = 0) -> TrialRequest:
        return TrialRequest(f"s000000-p00-g0{member}", self.task, self.folder / "trials", 1.0, 5)

    async def close(self) -> None:
        self.wire.whole.set()
        await self.fleet.close()
        if not self.left:
            await self.node.stop()


@contextlib.asynccontextmanager
async def rig_of(folder: Path, turns: int = 3):
    rig = Rig(folder, turns)
    await rig.join()
    try:
        yield rig
    finally:
        await rig.close()


def now() -> float:
    return asyncio.get_running_loop().time()
