"""Arguments of the command `doctor`."""

from typing import Any

import chz

from harbortrainer.cli.output import JSON
from harbortrainer.config import ABOVE_0, ServerSettings
from harbortrainer.docker import UNUSED_DAYS
from harbortrainer.setting import Check, field

_FROM_1_DAY = Check(lambda days: days >= 1, "must be 1 or more, or None")  # a live run marks its images every hour


@chz.chz
class ServerArgs(ServerSettings):
    url: str | None = field(None, "URL of a self-hosted server; tinker = Tinker cloud; None = as backend says")
    model_name: str | None = field(None, "base model; None = the first that the server names")
    refresh: bool = field(True, "true = measure again; false = use earlier measurements where they exist")
    json: str | None = field(None, JSON)


@chz.chz
class DockerArgs:
    tasks_dir: str | None = field(None, "folder of Harbor task directories; None = check Docker without tasks")
    n_parallel_envs: int = field(8, "trials whose agent or verifier runs at once", check=ABOVE_0)
    environment_kwargs: dict[str, Any] = field({}, "those of the run: environment_kwargs.override_memory_mb=VALUE")
    images: str | None = field(None, "that of the run")
    base_images: str | None = field(None, "that of the run")


@chz.chz
class CleanArgs:
    remove: bool = field(False, "true = remove what is listed; false = list only")
    images_older_than_days: float | None = field(
        UNUSED_DAYS, "remove task images unused for this many days, 1 or more; None = keep all", check=_FROM_1_DAY
    )
    json: str | None = field(None, JSON)
