"""A run directory whose disk fills up under real trials: a plain stop, an honest journal, and a run that goes on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import DiskFault
from harbortrainer.learning.trajectory import Trajectory, TrajectoryGroup
from harbortrainer.rollout.quarantine import Retries
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_batch, write_trajectory
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.room import warm_up
from tests.support.docker_parts import a_run, containers
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.tiers import first
from tests.support.trial_parts import SOLVE, local_host, make_task

N_TRIALS = 4
RUN = a_run("disk-full")
Note = Callable[[Trajectory], None]


@pytest.fixture
def disk(docker_ready: str) -> Iterator[SmallDisk]:
    with small_disk(8) as made:
        yield made


class Batch:
    """A batch of a run on the small disk; `began` are the trials that this process started."""

    def __init__(self, disk: SmallDisk, task: Task) -> None:
        self.run = RunDirectory(disk.folder / "run")
        self.run.path.mkdir(exist_ok=True)
        self.ledger = Ledger(self.run.ledger)
        self.folder = self.run.trajectories("step", 0)
        self.stored: list[str] = []
        self._task = task

    async def go(self, before_turn: Callable[[int], None] = lambda _: None, before_storing: Note = lambda _: None):
        """`before_turn` is given how many trials are stored, `before_storing` a trial before it is written down."""

        def policy(request: Any) -> str:
            before_turn(len(self.stored))
            said = client.template.tokenizer.decode(request.prompt_T).count("<|im_start|>assistant") - 1
            return SOLVE[min(said, 2)]

        def keep(trajectory: Trajectory) -> None:
            before_storing(trajectory)
            write_trajectory(self.folder, trajectory)
            self.stored.append(trajectory.trial_name)

        host, client = local_host(policy, n_parallel_envs=1)
        parts, retries = host.parts, Retries(faults=1)
        rollouts = Rollouts(parts.config, parts.sampler, parts.template, RUN, self.ledger, retries=retries)
        done = self.ledger.reusable("step", read_batch(self.folder))
        try:
            await warm_up(host.parts.config)
            return await rollouts.run_groups(
                [self._task], N_TRIALS, self.run.batch("step", 0), step=0, temperature=1.0, on_trajectory=keep,
                done=done,
            )  # fmt: skip
        finally:
            await rollouts.aclose()


@pytest.mark.parametrize("moment", first(1, ["in a trial", "before a trial is stored"]))
async def test_a_full_disk_stops_the_run_and_costs_no_trial_that_was_stored(
    disk: SmallDisk, tmp_path: Path, moment: str
) -> None:
    task = make_task(tmp_path)
    first = Batch(disk, task)
    with pytest.raises(DiskFault) as told:
        if moment == "in a trial":
            await first.go(before_turn=lambda stored: disk.fill() if stored == 2 else None)
        else:
            await first.go(before_storing=lambda _: disk.fill() if len(first.stored) == 2 else None)
    assert "No space left on device; make room on that disk" in str(told.value)
    assert f"python -m src.train resume={first.run.path}" in str(told.value)
    assert len(first.stored) == 2 and not first.ledger.quarantined
    assert containers(RUN) == []

    second = Batch(disk, task)  # still full, but for what the trial that was cut off had taken
    with pytest.raises(DiskFault):
        await second.go()

    disk.empty()
    again = Batch(disk, task)
    (group,) = await again.go()
    assert isinstance(group, TrajectoryGroup) and group.rewards_G == (1.0,) * N_TRIALS and not group.lost
    kept = [*first.stored, *second.stored, *again.stored]
    assert len(set(kept)) == len(kept) == N_TRIALS, "none was run again"
    ended = [record for record in read_lines(first.run.ledger) if record["event"] == "ended"]
    graded = [record["trial"] for record in ended if record["fate"] == "graded"]
    assert sorted(graded) == sorted(kept), "each once, none of those that were not kept"
    assert {record["reward"] for record in ended if record["trial"] not in graded} <= {None}
