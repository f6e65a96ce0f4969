"""A run's Harbor trials: the daemon's circuit breaker, images, clean-up, Harbor's job files."""

import asyncio
import contextlib
import gc
import importlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from harbortrainer.docker import cleaning
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.host import Host, build_images, cleaned
from harbortrainer.harbor import quiet_harbor_log, write_job_files
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.rollout.agent_session import AgentService
from harbortrainer.rollout.agents import program_of
from harbortrainer.rollout.slots import Slots
from harbortrainer.rollout.trial import NewTrial, TrialContext, run_trial
from harbortrainer.rollout.venue import Progress, RunParts, Say, TrialRequest
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.task import Task


def import_agent(import_path: str) -> None:
    """Import Harbor's module of an agent, for some with litellm: seconds. Blocks."""
    module, _, name = import_path.partition(":")
    getattr(importlib.import_module(module), name)


class HarborRoom:
    """Runs the trials of task directories. `context`: what they share."""

    def __init__(self, run: RunParts, host: Host, new_trial: NewTrial) -> None:
        self._host = host
        daemon = Daemon(run.config.outage_limit_sec, host.ping)
        agents = AgentService.of(run.template) if program_of(run.config) is not None else None
        self.context = TrialContext(
            run.config, run.sampler, run.template, run.run_id, run.gates, daemon, run.observer, new_trial, agents
        )

    @property
    def outages(self) -> int:
        """Of the daemon."""
        return self.context.daemon.outages

    @property
    def gate(self) -> Slots:
        """A slot for a container."""
        return self.context.gates.containers

    async def ready(self) -> None:
        await self.context.daemon.ready()

    async def suspect(self) -> None:
        await self.context.daemon.suspect()

    async def run(self, request: TrialRequest) -> Trajectory:
        return await run_trial(request, self.context)

    @contextlib.asynccontextmanager
    async def prepared(self, tasks: Sequence[Task], progress: Progress, say: Say) -> AsyncIterator[None]:
        """Clean the host around the block and guard its disk; build the tasks' images. Raises UserError."""
        agents = self.context.agents
        async with (
            agents.endpoint if agents else contextlib.nullcontext(),
            cleaned(self._host, self.context.run_id, say),
        ):
            folders = list(map(folder_of, tasks))
            images = build_images(self._host, folders, self.context.run_id, progress, say)
            try:
                await asyncio.gather(self.warm_up(), images)
                yield
            finally:
                await self.aclose()

    async def warm_up(self) -> None:
        """Import Harbor's agent in a thread, before the first trial needs it."""
        if (program := program_of(self.context.config)) is not None:
            await asyncio.to_thread(import_agent, program.import_path)
        else:
            await asyncio.to_thread(importlib.import_module, "harbortrainer.rollout.agent")
        gc.collect()
        gc.freeze()  # modules: a collection in the middle of a batch need not walk through them
        quiet_harbor_log()

    def close_batch(self, trials_dir: Path, n_trials: int) -> None:
        write_job_files(trials_dir, n_trials)

    async def aclose(self) -> None:
        """Wait for the removal of containers. Safe to repeat."""
        self.context.daemon.close()
        await cleaning.drain()
