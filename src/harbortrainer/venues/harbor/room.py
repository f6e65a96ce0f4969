"""A run's Harbor trials: their hosts, the daemon's circuit breaker, images, clean-up."""

import asyncio
import contextlib
import gc
import pkgutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from harbortrainer.config import Config
from harbortrainer.docker.checks.host import EnvironmentHost as Docker
from harbortrainer.docker.checks.host import cleaned, maker
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.images.supply import ImageSupply, builds_at_once
from harbortrainer.harbor import quiet_harbor_log, write_job_files
from harbortrainer.learning.agents import by_agent
from harbortrainer.rollout.fleet import Cluster, Fleet, FleetHost
from harbortrainer.rollout.gates import UNOBSERVED
from harbortrainer.rollout.venue import RunParts, Say
from harbortrainer.stopping import in_daemon_thread
from harbortrainer.tasks.folders import folder_of
from harbortrainer.tasks.task import Task
from harbortrainer.venues.harbor.container_agent import agent_of
from harbortrainer.venues.harbor.environment import PREBUILT_ONLY
from harbortrainer.venues.harbor.trial import LocalHost, NewTrial


class HarborRoom:
    """Runs the trials of task directories: on `local`, or on the hosts of a cluster."""

    def __init__(self, run: RunParts, docker: Docker, new_trial: NewTrial, cluster: Cluster | None = None) -> None:
        self._docker, self._run_id, self._cluster = docker, run.run_id, cluster
        self.agent, self.gate = run.config.agent, run.gates.containers
        daemon = Daemon(run.config.outage_limit_sec, docker.ping)
        agent = next(filter(None, map(agent_of, by_agent(run.config))), None)
        self.local = LocalHost(run, daemon, new_trial, agent and agent.service(run.template))
        self._supply: ImageSupply | None = None
        observer = UNOBSERVED if cluster is None else run.observer
        self.fleet = Fleet(self.gate, run.config.outage_limit_sec, observer)
        if cluster is None:
            self.fleet.join(self.local)
        else:
            run.sampler.follow(self.fleet)

    @property
    def metrics(self) -> Mapping[str, float]:
        return {} if self._cluster is None else self.fleet.metrics

    def host(self) -> AbstractAsyncContextManager[FleetHost]:
        return self.fleet.host()

    @contextlib.asynccontextmanager
    async def prepared(self, tasks: Sequence[Task], say: Say) -> AsyncIterator[None]:
        """Clean the host around the block and guard its disk; images are made within it. Raises UserError.

        With a cluster each of its hosts does so.
        """
        if self._cluster is not None:
            async with self._cluster.joined(self.fleet, tasks, say):
                yield
            return
        agents = self.local.agents
        async with (
            agents.endpoint if agents else contextlib.nullcontext(),
            cleaned(self._docker, self._run_id, say),
        ):
            folders = list(map(folder_of, tasks))
            config = self.local.parts.config
            only = bool(config.environment_kwargs.get(PREBUILT_ONLY))
            make = maker(self._docker, self._run_id, only, say)
            window = None  # hosts of a cluster keep all images, which they compare
            if config.hosts == "none":
                window = await in_daemon_thread(self._docker.window, config.images_gb)
            patience, n_tasks, push = config.outage_limit_sec, len(folders), self._docker.push
            supply = ImageSupply(make, builds_at_once(), patience, say, n_tasks, window=window, push=push)
            try:
                network = in_daemon_thread(self._docker.open_network, folders)
                await asyncio.gather(warm_up(config), network)
                async with supply as self._supply:
                    yield
            finally:
                await self.aclose()

    def expect(self, tasks: Sequence[Task]) -> None:
        if self._supply is not None:
            self._supply.expect(list(map(folder_of, tasks)))

    def supplied(self, task: Task) -> AbstractAsyncContextManager[str]:
        """Return the task's images; hosts of a cluster make their own, all of them when they join."""
        return contextlib.nullcontext("") if self._supply is None else self._supply.supplied(folder_of(task))

    def close_batch(self, trials_dir: Path, n_trials: int) -> None:
        write_job_files(trials_dir, n_trials)

    async def aclose(self) -> None:
        """Wait for what the trials leave on their hosts. Safe to repeat."""
        await self.fleet.close()


async def warm_up(config: Config) -> None:
    """Import Harbor's agents in a thread, before the first trial needs one: some bring litellm, for seconds."""
    for agent in map(agent_of, by_agent(config)):
        path = agent.import_path if agent else "harbortrainer.venues.harbor.terminus"
        await asyncio.to_thread(pkgutil.resolve_name, path)
    gc.collect()
    gc.freeze()  # modules: a collection in the middle of a batch need not walk through them
    quiet_harbor_log()
