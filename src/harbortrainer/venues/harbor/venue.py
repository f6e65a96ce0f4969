"""The venue of task directories: Harbor trials, in containers of this machine's daemon or of a sandbox service."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harbortrainer.config import Config
from harbortrainer.plugins import plugin
from harbortrainer.tasks.fetch import find_folder
from harbortrainer.tasks.folder_identity import identify_folder
from harbortrainer.tasks.folders import folder_of, load_tasks, task_paths
from harbortrainer.tasks.task import FOLDERS, Task
from harbortrainer.venues.harbor.reading import read_run

if TYPE_CHECKING:  # slow to import, and a list of tasks needs none of it
    from harbortrainer.docker.checks.host import EnvironmentHost
    from harbortrainer.policy.chat_template import ChatTemplate
    from harbortrainer.rollout.venue import RunParts
    from harbortrainer.venues.harbor.room import HarborRoom
    from harbortrainer.venues.harbor.trial import NewTrial


def load_template(config: Config) -> "ChatTemplate":
    """Return the run's chat template. Blocks. Raises UserError."""
    from harbortrainer.policy.chat_template import ChatTemplate

    return ChatTemplate.load(config.model_name, config.enable_thinking, config.tool_format)


@dataclass(frozen=True, slots=True)
class HarborVenue:
    """The venue of folders. `host`, `new_trial`: a test's replacements of the environments' host and of Harbor's
    trials.

    `load_template`, `silence_sec`: how another machine loads the chat template; its silence, after which it is lost.
    """

    host: "EnvironmentHost | None" = None
    new_trial: "NewTrial | None" = None
    load_template: "Callable[[Config], ChatTemplate]" = load_template
    silence_sec: float = 30.0
    name: str = FOLDERS
    packages: tuple[str, ...] = ("harbor", "docker")
    find = staticmethod(find_folder)
    identify = staticmethod(identify_folder)

    def names(self, place: str) -> list[str]:
        """Return names of the task directories in a folder. Raises UserError."""
        return [path.name for path in task_paths(place)]

    def load(self, place: str, excluded: Collection[str]) -> list[Task]:
        """Raises UserError for a missing folder, no task in it, or a broken task."""
        read_run([path for path in task_paths(place) if path.name not in excluded])
        return load_tasks(place, excluded)

    def check(self, tasks: Sequence[Task], config: Config, template: "ChatTemplate", n_trials: int) -> list[str]:
        """Return warnings for the user. Raises UserError when an environment or its host cannot carry the run."""
        from harbortrainer.docker.images.supply import builds_at_once
        from harbortrainer.rollout.venue import STEPS_AHEAD
        from harbortrainer.venues.harbor.container_agent import agent_memory
        from harbortrainer.venues.harbor.environment import check_agent_tasks, check_tasks, python_warning

        folders = list(map(folder_of, tasks))
        check_agent_tasks(folders, config, template)
        check_tasks(folders, config.environment_type, config.environment_kwargs)
        if config.hosts != "none":  # each host checks itself
            plugin("hosts", "hosts", config.hosts).value.check()
            return []
        if config.environment_type != "docker":
            return python_warning()
        host = self._host(config)
        lines = host.check(folders, n_trials, config.environment_kwargs, agent_memory(config))
        ahead = config.batch_size * (1 + STEPS_AHEAD)
        return [*lines, *host.needs(folders, builds_at_once(), ahead)]

    def room(self, run: "RunParts") -> "HarborRoom":
        from harbortrainer.venues.harbor.room import HarborRoom
        from harbortrainer.venues.harbor.trial import new_trial

        name = run.config.hosts
        cluster = None if name == "none" else plugin("hosts", "hosts", name).value.cluster(run, self)
        return HarborRoom(run, self._host(run.config), self.new_trial or new_trial, cluster)

    def _host(self, config: Config) -> "EnvironmentHost":
        from harbortrainer.docker.checks.host import DockerHost, ServiceHost
        from harbortrainer.docker.images.origins import set_origins

        set_origins(config.images, config.base_images)
        return (self.host or DockerHost()) if config.environment_type == "docker" else ServiceHost()


VENUE = HarborVenue()
