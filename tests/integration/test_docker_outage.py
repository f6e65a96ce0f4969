"""A Docker daemon that goes away in mid-batch: the batch waits, goes on, and nobody is scored for it."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.daemon import engine, ping_docker
from harbortrainer.docker.keeping import ownership
from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.trajectory import TrajectoryGroup
from harbortrainer.rollout.rollouts import Rollouts
from tests.support.own_daemon import OwnDaemon
from tests.support.trial_parts import SOLVE, answer, local_host, make_task

N_TRIALS = 4
LONGER_SEC = float(os.environ.get("OUTAGE_SEC", "0"))  # that the daemon is away beyond the time it takes to notice


class Policy:
    """The first turn of each trial outlasts the daemon; tells when all have begun it. Later trials solve the task."""

    def __init__(self) -> None:
        self.all_running = threading.Event()
        self.turns = 0

    def __call__(self, request: Any) -> str:
        self.turns += 1
        if self.turns == N_TRIALS:
            self.all_running.set()
        return answer("sleep 1000\n", wait=1000) if self.turns <= N_TRIALS else SOLVE[0]


async def run_batch(folder: Path, policy: Policy, **fields: Any) -> list[TrajectoryGroup]:
    host, _ = local_host(policy, n_parallel_envs=N_TRIALS, max_turns=3, **fields)
    rollouts = Rollouts(host.parts.config, host.parts.sampler, host.parts.template, "outage")
    try:
        return await rollouts.run_groups([make_task(folder)], N_TRIALS, folder / "b", step=0, temperature=1.0)
    finally:
        await rollouts.aclose()


async def test_a_daemon_that_comes_back_costs_nobody_a_reward(
    own_docker: OwnDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy()
    batch = asyncio.create_task(run_batch(tmp_path, policy))
    await asyncio.to_thread(policy.all_running.wait)
    await asyncio.to_thread(own_docker.stop)
    while "Docker does not answer" not in caplog.text:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(LONGER_SEC)
    await asyncio.to_thread(own_docker.start)
    (group,) = await batch
    assert [t.reward for t in group.trajectories_G] == [1.0] * N_TRIALS and not group.lost
    assert all(t.attempt > 1 for t in group.trajectories_G)
    assert "Docker is back" in caplog.text
    left = engine().containers(all=True, filters={"label": ownership.TRIAL})
    assert left == [], "those that the outage hit are gone too"


@pytest.mark.nightly
async def test_a_daemon_that_stays_away_stops_the_run_and_says_so(own_docker: OwnDaemon, tmp_path: Path) -> None:
    policy = Policy()
    batch = asyncio.create_task(run_batch(tmp_path, policy, outage_limit_sec=1.0))
    await asyncio.to_thread(policy.all_running.wait)
    await asyncio.to_thread(own_docker.stop)
    try:
        with pytest.raises(EnvironmentFault, match=r"Docker did not answer for 1 s .* start it"):
            await batch
    finally:
        await asyncio.to_thread(own_docker.start)


def test_a_frozen_daemon_is_told_from_one_that_answers(own_docker: OwnDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ping_docker() is None
    monkeypatch.setattr("harbortrainer.docker.daemon.PING_SEC", 0.2)
    own_docker.freeze()
    try:
        began = time.monotonic()
        assert "no answer to GET /_ping" in (ping_docker() or "")
        assert time.monotonic() - began < 600
    finally:
        own_docker.thaw()
