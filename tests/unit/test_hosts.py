"""Polls, leases, loss and fencing between a driver and its hosts, by the event loop's own clock."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, override

import chz
import pytest
from docker.errors import DockerException

from harbortrainer.backend.contract import CLOUD, TINKER_DOCUMENTS
from harbortrainer.backend.terms import agree
from harbortrainer.cli.arguments import validate
from harbortrainer.config import Config
from harbortrainer.docker.host import RemoteHost as NoDocker
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.learning.trajectory import Outcome, Trajectory, Turn
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.fleet import Fleet
from harbortrainer.rollout.gates import Gates, TrialObserver, TrialState
from harbortrainer.rollout.harbor_room import HarborRoom
from harbortrainer.rollout.trial import new_trial
from harbortrainer.rollout.venue import RunParts, TrialCancelled, TrialRequest
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor import HarborVenue
from harbortrainer.venues.hosts.facts import code, refuse_different
from harbortrainer.venues.hosts.messages import Facts, Job, pack_folder, unpack_folder
from harbortrainer.venues.hosts.node import FIRST_POLL_SEC, Node
from harbortrainer.venues.hosts.remote import POLL_SEC, SLACK_SEC, HostLost, RemoteHost
from tests.support.fakes import chat_template, response
from tests.support.virtual_time import VirtualLoop

SILENCE = 8.0
FACTS = Facts("machine", 1, ("id", "/data"), "20", {})
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
    async def prepared(self, tasks: Any, progress: Any, say: Any):
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
        self.config = Config(model_name="m", tasks_dir=".", n_parallel_envs=4, n_warm_envs=0)
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


def test_a_trial_comes_back_with_its_folder_and_is_counted_here(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path) as rig:
            rig.sampler.publish(rig.client, 7)
            trajectory = await rig.hosts[0].run(rig.request())
            assert trajectory.reward == 1.0 and [turn.weights_version for turn in trajectory.turns] == [7, 7, 7]
            assert trajectory.trial_dir == str(tmp_path / "trials" / "s000000-p00-g00")
            assert (Path(trajectory.trial_dir) / "result.json").read_text() == "{}"
            assert rig.sampler.counters["requests"] == 3 and rig.sampler.counters["sampled_tokens"] == 6
            assert rig.sampler.in_flight_seconds > 0.0
            assert rig.hosts[0].outages == 0

    in_virtual_time(work)


def test_a_trial_waits_for_the_weights_of_its_batch(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path) as rig:
            rig.sampler.publish(rig.client, 1)
            rig.gates.weights.clear()
            run = asyncio.create_task(rig.hosts[0].run(rig.request()))
            await asyncio.sleep(5)
            newer = Client()
            rig.sampler.publish(newer, 2)
            rig.gates.weights.set()
            assert [turn.weights_version for turn in (await run).turns] == [2, 2, 2]
            assert rig.client.asked == []

    in_virtual_time(work)


def test_a_silent_host_is_lost_and_its_trials_are_no_ones_fault(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path, turns=100) as rig:
            rig.sampler.publish(rig.client, 1)
            host = rig.hosts[0]
            run = asyncio.create_task(host.run(rig.request()))
            await asyncio.sleep(3.5)
            cut, before = now(), host.outages
            rig.wire.cut()
            trajectory = await run
            assert SILENCE - 1.1 <= now() - cut <= SILENCE + 0.1
            assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
            assert trajectory.detail == "host h0 was lost: no answer for 8 s"
            assert host.outages == before + 1 and rig.fleet.hosts == []

    in_virtual_time(work)


def test_a_cut_host_stops_sampling_before_the_driver_may_train(tmp_path: Path) -> None:
    """It first stops sampling, then ends its trials, then its process; the fence opens after all of that."""

    async def work() -> None:
        async with rig_of(tmp_path, turns=100) as rig:
            rig.sampler.publish(rig.client, 1)
            run = asyncio.create_task(rig.hosts[0].run(rig.request()))
            await asyncio.sleep(3.5)
            rig.wire.cut()
            cut = now()
            await run
            assert rig.client.asked[-1] >= now() - 1.0, "cut off, it goes on for now"
            await rig.sampler.drain()
            trained = now()
            assert rig.left and rig.client.asked[-1] + rig.client.seconds < rig.left[0] + 1.0 < trained
            assert trained - cut <= SILENCE + SLACK_SEC + POLL_SEC
            await asyncio.sleep(100)
            assert rig.client.asked[-1] < trained and Venue.made.removed == 1

    in_virtual_time(work)


def test_the_update_waits_for_requests_on_a_living_host(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path, turns=1) as rig:
            rig.client.seconds = 20.0
            rig.sampler.publish(rig.client, 1)
            run = asyncio.create_task(rig.hosts[0].run(rig.request()))
            await asyncio.sleep(1)
            await rig.sampler.drain()
            assert now() >= 20.0
            await run

    in_virtual_time(work)


def test_a_late_poll_does_not_renew_the_lease(tmp_path: Path) -> None:
    """Sent before a cut and delivered after it, when the driver has given the host up."""

    async def work() -> None:
        async with rig_of(tmp_path, turns=100) as rig:
            await asyncio.sleep(3)
            sent = now()
            rig.wire.cut()
            await asyncio.sleep(SILENCE - 1)
            await rig.node.poll(sent)
            await asyncio.sleep(2)
            assert rig.left == [pytest.approx(sent + SILENCE, abs=0.1)]

    in_virtual_time(work)


def test_a_node_that_nobody_polls_ends(tmp_path: Path) -> None:
    async def work() -> None:
        rig = Rig(tmp_path)
        job = Job(rig.config, "run", Venue(), lambda _: chat_template(), 4, False, SILENCE)
        node = Node(job, lambda: rig.left.append(now()), lambda: FACTS, lambda _: None)
        await node.start()
        await asyncio.sleep(FIRST_POLL_SEC - 1)
        assert rig.left == []
        await asyncio.sleep(2)
        assert rig.left == [pytest.approx(FIRST_POLL_SEC)]

    in_virtual_time(work)


def test_the_lease_begins_with_the_first_poll(tmp_path: Path) -> None:
    async def work() -> None:
        rig = Rig(tmp_path)
        job = Job(rig.config, "run", Venue(), lambda _: chat_template(), 4, False, SILENCE)
        node = Node(job, lambda: rig.left.append(now()), lambda: FACTS, lambda _: None)
        await node.start()
        await asyncio.sleep(20)
        await node.poll(now())
        await asyncio.sleep(2 * SILENCE)
        assert rig.left == [pytest.approx(20 + SILENCE)]

    in_virtual_time(work)


def test_a_dead_process_is_noticed_at_once_and_a_new_host_takes_its_place(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path, turns=5) as rig:
            rig.sampler.publish(rig.client, 1)
            first = rig.hosts[0]
            run = asyncio.create_task(first.run(rig.request()))
            await asyncio.sleep(1.5)
            rig.wire.killed = True
            died = now()
            assert (await run).outcome is Outcome.INFRASTRUCTURE_ERROR and now() - died <= 1.0
            await rig.node.stop()
            second = await rig.join()
            assert rig.fleet.hosts == [second]
            again = await second.run(rig.request(1))
            assert again.reward == 1.0 and {turn.weights_version for turn in again.turns} == {1}

    in_virtual_time(work)


def test_a_trial_given_to_a_host_that_was_just_lost_costs_no_attempt(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path) as rig:
            host = rig.hosts[0]
            host.lose("test")
            before = host.outages
            assert (await host.run(rig.request())).outcome is Outcome.INFRASTRUCTURE_ERROR
            assert host.outages == before + 1

    in_virtual_time(work)


def test_a_cancelled_trial_returns_what_was_paid_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path, turns=100) as rig:
            rig.sampler.publish(rig.client, 1)
            run = asyncio.create_task(rig.hosts[0].run(rig.request()))
            await asyncio.sleep(4.5)
            run.cancel()
            with pytest.raises(TrialCancelled) as cancelled:
                await run
            assert len(cancelled.value.turns) == 4 and Venue.made.removed == 1

    in_virtual_time(work)


def test_a_host_whose_daemon_stays_away_is_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path) as rig:
            rig.sampler.publish(rig.client, 1)
            Venue.made.fault = EnvironmentFault("Docker did not answer")
            trajectory = await rig.hosts[0].run(rig.request())
            assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR
            assert "Docker did not answer" in trajectory.detail and rig.fleet.hosts == []

    in_virtual_time(work)


def test_lost_weights_on_a_host_are_lost_here(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path) as rig:
            there = Client()
            rig.client.open = lambda config: there  # as another machine has a client of its own
            rig.sampler.publish(rig.client, 1)
            await asyncio.sleep(2)
            assert not rig.client.lost.is_set()
            there.lost.set()
            await asyncio.sleep(2)
            assert rig.client.lost.is_set()

    in_virtual_time(work)


def test_states_of_running_trials_are_shown_and_tokens_counted(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig_of(tmp_path, turns=4) as rig:
            rig.sampler.publish(rig.client, 1)
            run = asyncio.create_task(rig.hosts[0].run(rig.request()))
            await asyncio.sleep(0.1)
            rig.node._seen.moved("s000000-p00-g00", TrialState.SAMPLING)
            rig.node._seen.sampled(5)
            await asyncio.sleep(2)
            assert rig.observer.seen == [("s000000-p00-g00", TrialState.SAMPLING)] and rig.observer.tokens == 5
            await run
            rig.node._seen.moved("s000000-p00-g00", TrialState.VERIFYING)
            await asyncio.sleep(2)
            assert len(rig.observer.seen) == 1, "it has ended"

    in_virtual_time(work)


def test_other_code_and_a_shared_daemon_are_refused() -> None:
    same = Facts("m", 1, ("id", "/a"), "20", code())
    refuse_different("h1", same, [("h0", Facts("m", 2, ("id", "/b"), "20", code()))])
    with pytest.raises(UserError, match=r"host h1: harbortrainer x, here .*; check out the same commit"):
        refuse_different("h1", Facts("m", 1, ("id", "/a"), "20", code() | {"harbortrainer": "x"}), [])
    with pytest.raises(UserError, match="host h1: shares the Docker daemon of host h0"):
        refuse_different("h1", same, [("h0", same)])


def test_a_daemon_that_fails_while_a_host_joins_is_that_hosts_fault(tmp_path: Path) -> None:
    """Named in one line, and no error of the whole run."""

    class Broken(Venue):
        def room(self, run: RunParts) -> Room:
            made: Any = super().room(run)
            made.prepared = self.fails
            return made

        @contextlib.asynccontextmanager
        async def fails(self, *_: Any):
            raise DockerException("connection\nrefused")
            yield

    async def work() -> None:
        rig = Rig(tmp_path)
        job = Job(rig.config, "run", Broken(), lambda _: chat_template(), 4, False, SILENCE)
        node = Node(job, lambda: None, lambda: FACTS, lambda _: None)
        host = RemoteHost("h0", Wire(node), 4, rig.run, SILENCE, lambda _: None)
        await host.start()
        with pytest.raises(UserError, match=r"^host h0: Docker failed \(connection refused\); see whether it runs"):
            await host.ask("prepare")
        await host.close()

    in_virtual_time(work)


def test_a_killed_process_is_cleaned_up_after(tmp_path: Path) -> None:
    """Its folder too; what it leaves in Docker is the nightly tests' matter."""
    folder = tmp_path / "host"
    folder.mkdir()
    code = (
        "import pathlib, sys, time; from harbortrainer.venues.hosts.afterwards import clean_afterwards\n"
        "clean_afterwards(pathlib.Path(sys.argv[1])); print('ready', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none", "PYTHONPATH": str(Path("src").resolve())}
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.kill()
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_container_cannot_reach_out_of_its_trials_folder(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "link").symlink_to("/etc")
    (tmp_path / "trial" / "log").write_text("ran")
    packed = pack_folder(tmp_path / "trial")
    unpack_folder(packed, tmp_path / "there", trusted=False)
    assert [path.name for path in (tmp_path / "there" / "trial").iterdir()] == ["log"]
    unpack_folder(packed, tmp_path / "task", trusted=True)
    assert (tmp_path / "task" / "trial" / "link").readlink() == Path("/etc")


def test_a_task_arrives_with_the_modes_of_its_files(tmp_path: Path) -> None:
    """They are part of what its image is named by."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "run.sh").touch()
    (tmp_path / "task" / "run.sh").chmod(0o777)
    unpack_folder(pack_folder(tmp_path / "task"), tmp_path / "there", trusted=True)
    assert (tmp_path / "there" / "task" / "run.sh").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"environment_type": "daytona"},
            "environment_type=daytona: a sandbox service needs no hosts; leave hosts out",
        ),
        ({"tasks_dir": "tau:retail,tau:mock"}, "hosts=ray: conversations run in this process"),
        ({"n_parallel_envs": "auto"}, "n_parallel_envs=auto: with hosts give a number, which holds for each host"),
        ({"max_steps_off_policy": 1}, "max_steps_off_policy=1: hosts sample the weights published last and no others"),
        ({"eval_overlap": True, "eval_split": 0.5}, "eval_overlap=true: hosts sample the weights published last"),
        (
            {"backend": "skyrl-tx", "skyrl_tx_url": "http://localhost:8000"},
            "skyrl_tx_url=http://localhost:8000: with hosts give an address of the server that every host reaches",
        ),
    ],
)
def test_what_hosts_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"model_name": "m", "tasks_dir": "."}
    plain = Config(**given | changes)
    validate(plain)
    with pytest.raises(UserError) as refused:
        validate(chz.replace(plain, hosts="ray"))
    assert str(refused.value).startswith(words)


def test_a_server_whose_samplers_are_not_frozen_is_refused() -> None:
    config = Config(model_name="m", tasks_dir=".", hosts="ray")
    agree(config, CLOUD, TINKER_DOCUMENTS)
    with pytest.raises(UserError, match=r"hosts=ray: .* may change the weights in training"):
        agree(config, CLOUD, replace(TINKER_DOCUMENTS, frozen_samplers=False))


async def test_without_hosts_trials_sample_here_and_nothing_follows() -> None:
    sampler = PolicySampler()
    config = Config(model_name="m", tasks_dir=".")
    room = HarborVenue().room(RunParts(config, sampler, chat_template(), "run", Gates.of(config)))
    assert room.fleet.hosts == [room.local] and sampler._follower is None
