"""How the nodes of a cluster become hosts: side by side, with the images of the first one; without ray."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.bundled.hosts import ray_cluster
from harbortrainer.bundled.hosts.facts import code
from harbortrainer.bundled.hosts.messages import Job, MachineFacts, Report
from harbortrainer.bundled.hosts.ray_cluster import LOOK_SEC, RayCluster, _nodes, _start_actor
from harbortrainer.bundled.hosts.remote import HostLost
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


class Machine:
    """A node's process, as its link sees it. `image`: which build it has, "" = none; `dies`: in which call."""

    def __init__(self, name: str, daemon: str = "", image: str = "", dies: str = "") -> None:
        self.name, self.daemon, self.image, self.dies = name, daemon or name, image, dies
        self.starts, self.stops, self.file = 0, 0, ""
        self.start_sec = START_SEC

    def node(self) -> dict[str, Any]:
        return {"NodeID": self.name, "NodeManagerAddress": self.name, "Resources": {"trials": 4}}

    async def call(self, method: str, *args: Any) -> Any:
        if method == self.dies:
            self.dies = ""  # and its machine returns
            raise HostLost("ActorDiedError")
        return await getattr(self, method)(*args)

    def kill(self) -> None:
        """It is a test's."""

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


class Rig:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *machines: Machine) -> None:
        by_name = {machine.name: machine for machine in machines}
        for number, machine in enumerate(machines):  # one after the other
            machine.start_sec += 0.1 * number
        monkeypatch.setattr(ray_cluster, "_connect", lambda: None)
        monkeypatch.setattr(ray_cluster, "_disconnect", lambda: None)
        monkeypatch.setattr(ray_cluster, "_end_earlier", lambda run_id: asyncio.sleep(0))
        monkeypatch.setattr(ray_cluster, "_nodes", lambda: [machine.node() for machine in machines])
        monkeypatch.setattr(ray_cluster, "_start_actor", lambda job, node_id, name: by_name[node_id])
        monkeypatch.setattr(ray_cluster, "RayLink", lambda actor: actor)
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


def test_hosts_start_side_by_side_and_take_the_images_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [Machine(f"h{n}") for n in range(4)]
    rig = Rig(tmp_path, monkeypatch, *machines)

    async def work() -> None:
        async with rig.joined() as names:
            assert names == ["h0", "h1", "h2", "h3"]
            assert {machine.image for machine in machines} == {"built by h0"}
            assert now() <= START_SEC + BUILD_SEC + 3 * COPY_SEC + PREPARE_SEC + 1

    in_virtual_time(work)


def test_a_host_whose_source_of_images_dies_joins_with_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machine("source", dies="read"), Machine("other"), Machine("third")
    rig = Rig(tmp_path, monkeypatch, *machines)

    async def work() -> None:
        async with rig.joined() as names:
            assert names == ["third"], "the one died, the other is without images"
            machines[0].image = ""  # or it would be refused
            await asyncio.sleep(LOOK_SEC + 2 * (START_SEC + COPY_SEC + PREPARE_SEC) + 1)
            assert rig.names == ["other", "source", "third"]
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
    second: Machine, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Machine("a", image="1")
    rig = Rig(tmp_path, monkeypatch, first, second)

    async def work() -> None:
        with pytest.raises(UserError, match=words):
            async with rig.joined():
                pass
        assert (first.stops, second.stops) == (1, 1)

    in_virtual_time(work)


def test_hosts_join_after_a_cluster_that_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray raises errors of its own, and Python's; each outage is named once."""
    first, late = Machine("first"), Machine("late")
    listed, start, errors = _nodes, _start_actor, [OSError("reset"), RuntimeError("away\nmore"), RayError("lost")]
    rig = Rig(tmp_path, monkeypatch, first, late)
    known, machines = [first.node()], {"first": first, "late": late}

    def nodes() -> list[dict[str, Any]]:
        if len(known) > 1 and len(errors) > 1:
            raise errors.pop()
        return [node | {"Alive": True} for node in known]

    def remote(job: Job) -> Any:  # of the actor, while its node is known already
        if errors:
            raise errors.pop()
        return machines["late"]

    ray = {
        "": SimpleNamespace(nodes=nodes, remote=lambda **_: lambda _: SimpleNamespace(options=lambda **_: actor)),
        "exceptions": SimpleNamespace(RayError=RayError),
        "util.scheduling_strategies": SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None),
    }
    actor = SimpleNamespace(remote=remote)
    monkeypatch.setattr(ray_cluster, "_ray", lambda name="": ray[name])
    monkeypatch.setattr(ray_cluster, "_nodes", listed)

    async def work() -> None:
        async with rig.joined() as names:
            assert names == ["first"]
            monkeypatch.setattr(ray_cluster, "_start_actor", start)
            known.append(late.node())
            await asyncio.sleep(4 * LOOK_SEC + START_SEC + COPY_SEC + PREPARE_SEC + 1)
            assert rig.names == ["first", "late"] and not errors

    in_virtual_time(work)
    lines = [record.getMessage() for record in caplog.records if "the cluster does not answer" in record.getMessage()]
    assert lines == ["hosts=ray: the cluster does not answer (lost); see whether its head runs"]


def test_a_head_that_stays_away_is_warned_of_before_ray_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_cluster, "SLOW_SEC", 0.02)
    answers = asyncio.Event()

    async def nodes() -> str:
        await answers.wait()
        return "nodes"

    async def work() -> None:
        asking = asyncio.create_task(ray_cluster._told_if_slow(nodes()))
        while not caplog.records:  # noqa: ASYNC110 -- nothing says that a record came
            await asyncio.sleep(0.001)
        answers.set()
        assert await asking == await ray_cluster._told_if_slow(nodes()) == "nodes"

    asyncio.run(work())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the cluster's head has not answered" in line and line.endswith("continue with resume=RUN_DIR")
