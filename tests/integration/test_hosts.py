"""Trials on two real Ray nodes with a dockerd each: batches, losses, a killed driver, Ctrl-C, refusals."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.run.trajectories import packed, read_batch
from harbortrainer.tasks.folders import folder_of
from tests.conftest import ROOT, SMALL_SERVER, free_port, succeed
from tests.support.hosts_parts import AGENTS
from tests.support.own_cluster import OwnCluster, OwnHost, own_cluster
from tests.support.trial_parts import make_task

pytestmark = [pytest.mark.nightly, pytest.mark.disk]
SILENCE = 8.0  # in tests of what follows from it; a machine under heavy load may be silent for as long
SLOW = {"turns": 8, "turn_sec": 0.4}


@pytest.fixture(scope="module")
def cluster(docker_ready: str) -> Iterator[OwnCluster]:
    venv = ROOT / ".venv-ray"
    succeed("scripts/setup.sh", "--ray", timeout_sec=900, env={"VENV": str(venv)})
    with own_cluster(venv, docker_ready, places=(5, 5)) as cluster:
        yield cluster


@dataclass
class Driven:
    """A driver and what it has said. Its folder can be driven again."""

    cluster: OwnCluster
    folder: Path
    given: dict[str, Any]
    said: list[dict[str, Any]] = field(default_factory=list)

    def start(self, **environment: str) -> "Driven":
        self.process = self.cluster.driver(self.given, **environment)
        return self

    def until(self, enough: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Read what it says until that is enough, or it ends."""
        assert self.process.stdout is not None
        while not enough(self.said) and (line := self.process.stdout.readline()):
            if line.startswith("{"):  # Ray reports a dead worker or node on stdout, at times on the same line
                self.said.append(json.JSONDecoder().raw_decode(line)[0])

    def end(self) -> int:
        self.until(lambda _: False)
        return self.process.wait(60)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["kind"] == kind]

    def ledger(self) -> Counter[str]:
        """Lines by kind, and of those that ended the first word of why."""
        lines = [json.loads(line) for line in (self.folder / "ledger.jsonl").read_text().splitlines()]
        return Counter(_kind(line) for line in lines)

    def again(self) -> "Driven":
        return Driven(self.cluster, self.folder, self.given).start()


def _kind(line: dict[str, Any]) -> str:
    words = str(line.get("fate", ""))
    after = " after an outage" if words.startswith("replaced") and "outage" in words else ""
    return f"{line.get('event', line.get('kind'))} {words.split(' ')[0]}{after}".strip()


@pytest.fixture
def drive(cluster: OwnCluster, tmp_path: Path) -> Callable[..., Driven]:
    for host in cluster.hosts:  # a test before may have ended it
        if not host.processes("raylet/raylet"):
            host.start_node()

    def start(n: int = 20, network: str = "", environment: Mapping[str, str] = {}, **given: Any) -> Driven:
        task = make_task(tmp_path / "tasks")
        if network:
            with (folder_of(task) / "task.toml").open("a") as file:
                file.write(f'network_mode = "{network}"\n')
        whole = {"folder": str(tmp_path), "run_id": f"hosts-{tmp_path.name}", "n": n, "parallel": 4, "hosts": "ray"}
        whole |= {"silence_sec": 60.0, "script": SLOW} | given
        return Driven(cluster, tmp_path, whole).start(**environment)

    return start


def until(condition: Callable[[], bool], limit_sec: float) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_sec, f"not within {limit_sec:g} s"
        time.sleep(0.2)
    return time.monotonic() - began


def all_graded(driven: Driven, n: int) -> None:
    (batch,) = driven.of("batch")
    assert (batch["rewards"], batch["folders"], batch["npz"]) == ({"1.0": n}, n, n)
    assert driven.ledger()["ended graded"] == n


def test_a_batch_on_two_hosts(drive: Callable[..., Driven], cluster: OwnCluster) -> None:
    driven = drive(32, script={"turns": 3})
    assert driven.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    all_graded(driven, 32)
    (ready,), (batch,) = driven.of("ready"), driven.of("batch")
    published = driven.of("published")[0]["seconds"]
    print(
        f"ready in {ready['seconds']:.1f} s; {32 / batch['seconds']:.2f} trials/s, driver {batch['cpu_ms']:.0f} ms "
        f"CPU; published to idle hosts in {1000 * published:.0f} ms"
    )
    assert ready["most"] == 8 and batch["counters"]["requests"] == len(driven.of("turn")) == 32 * 3
    assert driven.ledger() == {"started": 32, "ended graded": 32}
    hosts = Counter(line["host"] for line in read_lines(driven.folder / "ledger.jsonl") if line["event"] == "ended")
    assert set(hosts) == {host.address for host in cluster.hosts} and min(hosts.values()) >= 8, hosts
    built = [line["line"] for line in driven.of("line") if "images built" in line["line"]]
    assert len(built) <= 1, "one host builds, the other gets a copy"
    assert [host.containers() for host in cluster.hosts] == [0, 0]
    assert [host.processes("ray::Node") for host in cluster.hosts] == [[], []]


def test_a_trajectory_is_that_of_a_trial_without_hosts(drive: Callable[..., Driven], cluster: OwnCluster) -> None:
    """Byte by byte, but for times and the folder's name: ids, logprobs, texts, grade."""
    there = drive(8, script={"turns": 3})
    assert there.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    here = Driven(cluster, there.folder / "here", there.given | {"folder": str(there.folder / "here"), "hosts": "none"})
    make_task(here.folder / "tasks")
    here.start(DOCKER_HOST=cluster.hosts[0].docker)
    assert here.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    assert here.of("over")[0]["modules"] is False and there.of("over")[0]["modules"] is True, "ray is imported"
    ours, theirs = (read_batch(driven.folder / "trajectories" / "step_000000") for driven in (here, there))
    assert len(ours) == 8 and {name: timeless(one) for name, one in ours.items()} == {
        name: timeless(one) for name, one in theirs.items()
    }


def timeless(trajectory: Trajectory) -> bytes:
    """The file of the trajectory, had it taken no time."""
    turns = tuple(replace(turn, seconds=0.0) for turn in trajectory.turns)
    return packed(replace(trajectory, turns=turns, times=dict.fromkeys(trajectory.times, 0.0), stats={}, trial_dir=""))


def test_without_hosts_trials_run_on_a_daemon_elsewhere(drive: Callable[..., Driven], cluster: OwnCluster) -> None:
    driven = drive(4, hosts="none", script={"turns": 3}, environment={"DOCKER_HOST": cluster.hosts[1].docker_tcp})
    assert driven.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    all_graded(driven, 4)
    assert cluster.hosts[1].containers() == 0


@pytest.mark.skipif(not (AGENTS / "bin").is_dir(), reason="scripts/setup.sh --agents makes the programs")
def test_an_agent_in_a_container_is_answered_by_its_own_host(drive: Callable[..., Driven], cluster: OwnCluster) -> None:
    driven = drive(2, parallel=1, script={"turns": 2, "agent": "mini-swe-agent"}, network="no-network")
    assert driven.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    all_graded(driven, 2)
    trajectories = read_batch(driven.folder / "trajectories" / "step_000000").values()
    assert [len(one.turns) for one in trajectories] == [2, 2]
    assert {one.stats["wire_tokens_per_unique_token"] for one in trajectories} == {1.0}
    assert [host.containers() for host in cluster.hosts] == [0, 0]


def kill_actor(host: OwnHost) -> None:
    for pid in host.processes("ray::Node"):
        os.kill(pid, signal.SIGKILL)


def kill_raylet(host: OwnHost) -> None:
    for pid in host.processes("raylet/raylet"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("fault", "bar"),
    [(kill_actor, 1.0), (kill_raylet, 6.0), (OwnHost.cut, SILENCE + 2)],
    ids=["actor", "raylet", "cut"],
)
def test_a_lost_hosts_trials_run_again_and_cost_no_attempt(
    drive: Callable[..., Driven], cluster: OwnCluster, fault: Callable[[OwnHost], None], bar: float
) -> None:
    """`bar`: seconds in which the run shall know of the loss."""
    driven, victim = drive(silence_sec=SILENCE), cluster.hosts[0]
    logged = len((cluster.folder / "driver.log").read_text())
    driven.until(lambda said: sum(one["kind"] == "trial" for one in said) >= 2)
    until(lambda: victim.containers() > 0, 60)
    fault(victim)
    known = until(lambda: "is lost: " in (cluster.folder / "driver.log").read_text()[logged:], 3 * bar)
    print(f"the run knew after {known:.1f} s; on 2 quiet cores within {bar:g} s")
    assert driven.end() == 0, (cluster.folder / "driver.log").read_text()[-2000:]
    all_graded(driven, 20)
    counted = driven.ledger()
    assert counted["ended replaced after an outage"] >= 1 and counted["ended replaced"] == 0, counted
    until(lambda: victim.containers() == 0, SILENCE + 20)  # it cleans up by itself
    until(lambda: not victim.processes("ray::Node"), SILENCE + 20)
    if fault is OwnHost.cut:
        victim.heal()
        until(lambda: not victim.processes("raylet/raylet"), 60)


def test_a_killed_driver_leaves_nothing_and_grades_nothing_twice(
    drive: Callable[..., Driven], cluster: OwnCluster
) -> None:
    driven = drive(silence_sec=SILENCE)
    driven.until(lambda said: sum(one["kind"] == "trial" for one in said) >= 2)
    graded = {one["name"] for one in driven.of("trial")}
    driven.process.kill()
    driven.end()
    until(lambda: not any(host.containers() or host.processes("ray::Node") for host in cluster.hosts), SILENCE + 20)
    again = driven.again()
    assert again.end() == 0
    all_graded(again, 20)
    assert graded.isdisjoint(one["name"] for one in again.of("trial"))


def test_a_driver_that_returns_at_once_ends_the_hosts_of_the_one_before(
    drive: Callable[..., Driven], cluster: OwnCluster
) -> None:
    driven = drive(script={"turns": 30, "turn_sec": 0.5})
    driven.until(lambda said: any(one["kind"] == "ready" for one in said))
    until(lambda: all(host.containers() for host in cluster.hosts), 60)
    before = {pid for host in cluster.hosts for pid in host.processes("ray::Node")}
    driven.process.kill()
    driven.end()
    driven.given["script"] = SLOW
    again = driven.again()
    again.until(lambda said: any(one["kind"] == "ready" for one in said))
    now = {pid for host in cluster.hosts for pid in host.processes("ray::Node")}
    assert len(now) == 2 and now.isdisjoint(before)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in now] == [0, 0]
    assert again.end() == 0
    all_graded(again, 20)


def test_an_interrupted_driver_ends_its_trials_in_order(drive: Callable[..., Driven], cluster: OwnCluster) -> None:
    driven = drive(parallel=5, script={"turns": 60, "turn_sec": 0.5})
    driven.until(lambda said: sum(one["kind"] == "turn" for one in said) >= 20)
    until(lambda: sum(host.containers() for host in cluster.hosts) >= 10, 60)
    driven.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    driven.end()
    print(f"over {time.monotonic() - began:.1f} s after Ctrl-C")
    counted = driven.ledger()
    assert counted["started"] == counted["ended cancelled"] == 10, counted
    lines = read_lines(driven.folder / "ledger.jsonl")
    assert sum(line.get("turns", 0) for line in lines) >= 20, "turns that were paid for are booked"
    assert [host.containers() for host in cluster.hosts] == [0, 0]
    assert [host.processes("ray::Node") for host in cluster.hosts] == [[], []]


def test_the_doctor_knows_every_host(cluster: OwnCluster) -> None:
    done = _inside(cluster, "-m", "src.doctor", "hosts")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("host ")]
    assert len(lines) == 2 and all(line.endswith(": ok") and "5 places" in line for line in lines)
    lost = _inside(cluster, "-m", "src.doctor", "hosts", "skyrl_tx_url=http://10.77.0.1:9")
    assert lost.returncode == 1 and lost.stdout.count("connection refused") == 2


def test_without_a_token_nothing_runs(cluster: OwnCluster) -> None:
    done = _inside(cluster, "-m", "src.doctor", "hosts", RAY_AUTH_TOKEN_PATH=str(cluster.folder / "nowhere"))
    assert done.returncode == 2 and "hosts=ray: no token in" in done.stderr + done.stdout
    other = cluster.folder / "other"
    other.write_text("0" * 64)
    refused = _inside(cluster, "-m", "src.doctor", "hosts", RAY_AUTH_TOKEN_PATH=str(other))
    assert refused.returncode == 2, refused.stdout + refused.stderr


@pytest.fixture
def served(cluster: OwnCluster, tiny_model_dir: Path, server_env: None, tmp_path: Path) -> Iterator[str]:
    """URL of a real server beside the head, which every host reaches."""
    port = str(free_port())
    settings = {
        "SKYRL_TX_PORT": port,
        "SKYRL_TX_HOST": cluster.head_address,
        "SKYRL_TX_STATE": str(tmp_path / "server"),
    }
    environment = cluster.environment | SMALL_SERVER | settings
    inside = cluster.inside(cluster.head)
    succeed(*inside, "scripts/start_skyrl_tx.sh", "--background", tiny_model_dir, env=environment)
    try:
        yield f"http://{cluster.head_address}:{port}"
    finally:
        succeed(*inside, "scripts/stop_skyrl_tx.sh", port, env=environment)


def test_training_goes_on_when_a_host_is_cut_while_it_samples(
    cluster: OwnCluster, served: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Every turn was sampled by the weights that its step trains, on the host that left too."""
    for host in cluster.hosts:
        if not host.processes("raylet/raylet"):
            host.start_node()
    run, victim = tmp_path / "runs" / "cut", cluster.hosts[0]
    words = (
        f"hosts=ray backend=skyrl-tx skyrl_tx_url={served} model_name={tiny_model_dir} tasks_dir=datasets/quickstart "
        f"logs_dir={run.parent} run_name=cut max_steps=3 lora_rank=8 batch_size=2 group_size=8 n_parallel_envs=3 "
        "max_turns=4 max_tokens=40 context_limit=2048 learning_rate=3e-3 save_every=1"
    )
    command = [*cluster.inside(cluster.head), str(cluster.venv / "bin" / "python"), "-m", "src.train", *words.split()]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log, cwd=ROOT)
    try:
        until(lambda: process.poll() is not None or (_step(run) >= 1 and victim.containers() > 0), 600)
        victim.cut()
        status = process.wait(600)
    finally:
        process.kill()
        process.wait()
        victim.heal()
    assert status == 0, (tmp_path / "log").read_text()[-3000:]
    rows = read_lines(run / "metrics.jsonl")
    print([(row["global_step"], row.get("reward/mean"), row.get("logprobs/max_abs_difference")) for row in rows])
    trained = [row for row in rows if not row["train/skipped_batch"]]
    assert [row["global_step"] for row in rows] == [1, 2, 3] and trained
    assert all(row["logprobs/max_abs_difference"] <= 1e-3 for row in trained)
    for step in range(3):
        batch = read_batch(run / "trajectories" / f"step_{step:06d}").values()
        assert len(batch) == 16 and {turn.weights_version for one in batch for turn in one.turns} == {step}
    fates = [line.get("fate", "") for line in read_lines(run / "ledger.jsonl")]
    assert sum(fate.endswith("after an outage") for fate in fates) >= 1
    assert f"host {victim.address} is lost: " in (tmp_path / "log").read_text()
    until(lambda: victim.containers() == 0 and not victim.processes("ray::Node"), 60)


def _step(run: Path) -> int:
    path = run / "metrics.jsonl"
    return max([int(row["global_step"]) for row in read_lines(path)], default=-1) if path.exists() else -1


def _inside(cluster: OwnCluster, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [*cluster.inside(cluster.head), str(cluster.venv / "bin" / "python"), *words]
    return subprocess.run(
        command, env=cluster.environment | environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
