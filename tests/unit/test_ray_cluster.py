"""How the nodes of a cluster become hosts: side by side, with the images of the first one; without ray."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.bundled.hosts.facts import code
from harbortrainer.bundled.hosts.messages import Job, MachineFacts, Report
from harbortrainer.bundled.hosts.ray_cluster import LOOK_SEC, SLOW_SEC, RayCluster, _told_if_slow
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.fleet import Fleet
from harbortrainer.rollout.gates import Gates
from harbortrainer.rollout.venue import RunParts
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.fakes import chat_template
from tests.support.hosts_rig import in_virtual_time, now

START_SEC, BUILD_SEC, COPY_SEC, PREPARE_SEC = 10.0, 40.0, 3.0, 5.0


class RayError(Exception):
    """As Ray names it."""


class RayTaskError(RayError):
    """As Ray names it."""


class Machine:
    """An actor, and the node that it runs on. `image`: which build it has, "" = none; `dies`: in which call."""

    def __init__(self, name: str, daemon: str = "", image: str = "", dies: str = "") -> None:
        self.name, self.daemon, self.image, self.dies = name, daemon or name, image, dies
        self.starts, self.stops, self.file = 0, 0, ""
        self.start_sec = START_SEC

    def node(self) -> dict[str, Any]:
        return {"NodeID": self.name, "NodeManagerAddress": self.name, "Resources": {"trials": 4}, "Alive": True}

    def actor(self) -> Any:
        async def call(method: str, *args: Any) -> Any:
            if method == self.dies:
                self.dies = ""  # and its machine returns
                raise RayError
            return await getattr(self, method)(*args)

        methods = [name for name in dir(Machine) if not name.startswith("_")]
        return SimpleNamespace(**{n: SimpleNamespace(remote=lambda *args, n=n: call(n, *args)) for n in methods})

    async def start(self) -> MachineFacts:
        self.starts += 1
        await asyncio.sleep(self.start_sec)
        return MachineFacts((self.daemon, "/data"), "20", code())

    async def poll(self, sent: float) -> Report:
        return Report()

    async def reach(self) -> None: ...

    async def add(self, task: Task, packed: bytes) -> None: ...

    async def stop(self) -> None:
        self.stops += 1

    async def images(self) -> dict[str, str]:
        return {"task": self.image}

    async def save_images(self, names: list[str]) -> int:
        assert not self.file, "two hosts would read one file"
        self.file = self.image
        await asyncio.sleep(COPY_SEC)
        return 1

    async def read(self, offset: int, size: int) -> str:
        read, self.file = self.file, ""
        return read

    async def write(self, data: str) -> None:
        self.file = data

    async def load_images(self) -> None:
        self.image, self.file = self.file, ""

    async def prepare(self) -> list[str]:
        await asyncio.sleep(PREPARE_SEC if self.image else BUILD_SEC)
        self.image = self.image or f"built by {self.name}"
        return []


class Ray:
    """Stands for the package, and its cluster. `away`: what its next answers about the last machine raise."""

    def __init__(self, machines: tuple[Machine, ...]) -> None:
        self.machines, self.away = {machine.name: machine for machine in machines}, list[Exception]()
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node_id, soft: node_id)
        self.modules = {
            "ray": self,
            "ray.exceptions": SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError),
            "ray.util": SimpleNamespace(list_named_actors=lambda _: []),
            "ray.util.scheduling_strategies": strategies,
        }

    def init(self, **_: Any) -> None: ...

    def shutdown(self) -> None: ...

    def kill(self, actor: Any) -> None: ...

    def nodes(self) -> list[dict[str, Any]]:
        if len(self.away) > 1:
            raise self.away.pop()
        return [machine.node() for machine in self.machines.values()]

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda _: SimpleNamespace(options=lambda **own: SimpleNamespace(remote=lambda job: self._actor(**own)))

    def _actor(self, scheduling_strategy: str, **_: Any) -> Any:
        if self.away:  # its node is known already
            raise self.away.pop()
        return self.machines[scheduling_strategy].actor()


class Rig:
    def __init__(self, folder: Path, machines: tuple[Machine, ...]) -> None:
        for number, machine in enumerate(machines):  # one after the other
            machine.start_sec += 0.1 * number
        self.ray = Ray(machines)
        config = Config(model_name="m", tasks_dir=".")
        gates = Gates.of(config)
        run = RunParts(config, PolicySampler(), chat_template(), "run", gates)
        self.fleet = Fleet(gates.containers, 60.0)
        self.cluster = RayCluster(Job(config, "run", HarborVenue(), lambda _: chat_template(), 4, False, 8.0), run)
        (folder / "task").mkdir()
        self.task = Task("task", folder / "task", "d1")

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[list[str]]:
        async with self.cluster.joined(self.fleet, [self.task], lambda line: None):
            yield self.names

    @property
    def names(self) -> list[str]:
        return sorted(host.name for host in self.fleet.hosts)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    def made(*machines: Machine) -> Rig:
        rig = Rig(tmp_path, machines)
        for name, module in rig.ray.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return rig

    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "token")
    return made


def test_hosts_start_side_by_side_and_take_the_images_of_the_first(rig: Callable[..., Rig]) -> None:
    machines = [Machine(f"h{n}") for n in range(4)]
    cluster = rig(*machines)

    async def work() -> None:
        async with cluster.joined() as names:
            assert names == ["h0", "h1", "h2", "h3"]
            assert {machine.image for machine in machines} == {"built by h0"}
            assert now() <= START_SEC + BUILD_SEC + 3 * COPY_SEC + PREPARE_SEC + 1

    in_virtual_time(work)


def test_a_host_whose_source_of_images_dies_joins_with_the_next_look(rig: Callable[..., Rig]) -> None:
    machines = Machine("source", dies="read"), Machine("other"), Machine("third")
    cluster = rig(*machines)

    async def work() -> None:
        async with cluster.joined() as names:
            assert names == ["third"], "the one died, the other is without images"
            machines[0].image = ""  # or it would be refused
            await asyncio.sleep(LOOK_SEC + 2 * (START_SEC + COPY_SEC + PREPARE_SEC) + 1)
            assert cluster.names == ["other", "source", "third"]
            assert {machine.image for machine in machines} == {"built by third"}
            assert [machine.starts for machine in machines] == [2, 2, 1]
        assert [machine.stops for machine in machines] == [1, 2, 1], "the lost one was out of reach"

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (Machine("b", image="2"), "host b: has other images than host a: task; rewards would"),
        (Machine("b", daemon="a"), "host b: shares the Docker daemon of host a"),
    ],
    ids=["image", "daemon"],
)
def test_a_host_that_does_not_fit_ends_the_run_before_it_begins_and_all_hosts_are_closed(
    second: Machine, words: str, rig: Callable[..., Rig]
) -> None:
    first = Machine("a", image="1")
    cluster = rig(first, second)

    async def work() -> None:
        with pytest.raises(UserError, match=words):
            async with cluster.joined():
                pass
        assert (first.stops, second.stops) == (1, 1)

    in_virtual_time(work)


def test_hosts_join_after_a_cluster_that_did_not_answer(
    rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    """Ray raises errors of its own, and Python's; each outage is named once."""
    late = Machine("late")
    cluster = rig(Machine("first"))

    async def work() -> None:
        async with cluster.joined() as names:
            assert names == ["first"]
            cluster.ray.machines["late"] = late
            cluster.ray.away += [OSError("reset"), RuntimeError("away\nmore"), RayError("lost")]
            await asyncio.sleep(4 * LOOK_SEC + START_SEC + COPY_SEC + PREPARE_SEC + 1)
            assert cluster.names == ["first", "late"] and not cluster.ray.away

    in_virtual_time(work)
    lines = [record.getMessage() for record in caplog.records if "the cluster does not answer" in record.getMessage()]
    assert lines == ["hosts=ray: the cluster does not answer (lost); see whether its head runs"]


def test_a_head_that_stays_away_is_warned_of_before_ray_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        assert await _told_if_slow(asyncio.sleep(SLOW_SEC - 1, "nodes")) == "nodes" and not caplog.records
        assert await _told_if_slow(asyncio.sleep(SLOW_SEC + 1, "nodes")) == "nodes"

    in_virtual_time(work)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the cluster's head has not answered" in line and line.endswith("continue with resume=RUN_DIR")
