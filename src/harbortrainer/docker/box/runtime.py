"""The runtime of containers of trials: crun, faster than runc, where the daemon offers it and it works."""

import logging
import os
import threading

from docker.errors import DockerException, ImageNotFound

from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.daemon import engine
from harbortrainer.errors import one_line

CRUN = "crun"
_log = logging.getLogger("harbortrainer")
_lock = threading.Lock()
_chosen: dict[str | None, str | None] = {}  # by DOCKER_HOST


def runtime(image: str, run_id: str) -> str | None:
    """Return the runtime to ask for; None = the daemon's default. Blocking.

    The first call for a daemon that offers crun starts a container of `image` with it, runs a command there, and logs
    what follows. Raises docker.errors.ImageNotFound; DockerException when the daemon does not answer.
    """
    host = os.environ.get("DOCKER_HOST")
    with _lock:
        if host not in _chosen:
            info = engine().info()
            offered = CRUN in (info.get("Runtimes") or {}) and info.get("DefaultRuntime") != CRUN
            _chosen[host] = CRUN if offered and _works(image, run_id) else None
        return _chosen[host]


def _works(image: str, run_id: str) -> bool:
    """Whether a container starts, and a command runs in it."""
    client, sleep = engine(), ["sh", "-c", "exec sleep 60"]
    try:
        with one_off(image, sleep, run_id, user="0", network_mode="none", runtime=CRUN) as container:
            client.start(container)
            command = client.exec_create(container, ["sh", "-c", "exit 7"])["Id"]
            client.exec_start(command)
            if client.exec_inspect(command)["ExitCode"] != 7:
                raise DockerException("a command in its container failed")
    except ImageNotFound:
        raise
    except DockerException as error:
        _log.info("crun fails, so the daemon's default runtime is used: %s", one_line(error))
        return False
    _log.info("containers start with crun")
    return True
