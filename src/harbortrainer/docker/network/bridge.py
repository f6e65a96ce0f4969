"""The network of trials: one bridge for each daemon, whose containers reach the internet, but neither each other nor,
where this process may set host rules, the daemon's machine. All functions block.

Every run on the daemon shares it. It stays when a run ends; `doctor clean` removes it once no container uses it, and a
run that finds it gone creates it again.
"""

import functools
import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from docker.errors import APIError, NotFound
from harbor.models.task.config import NetworkMode

from harbortrainer.commands import command
from harbortrainer.docker.box.compose import COMPOSE
from harbortrainer.docker.checks.preflight import network_modes
from harbortrainer.docker.daemon import answered, engine
from harbortrainer.docker.keeping.ownership import BRIDGE, LABEL, NETWORK
from harbortrainer.docker.network.host_rules import COMPOSE_BRIDGES, set_rules
from harbortrainer.errors import EnvironmentFault
from harbortrainer.harbor import task_config

NAME = "harbortrainer-trials"
VERSION = "1"  # of the options below: a network of another version is not used
_MTU = "com.docker.network.driver.mtu"
_OPTION = "com.docker.network.bridge."
_log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class TrialNetwork:
    """A network. `exposed`: why its containers can reach the daemon's machine; "" = they cannot."""

    id: str
    name: str
    bridge: str  # the interface on the daemon's machine
    exposed: str = ""

    @property
    def line(self) -> str:
        """How far trials can see, in one line for the user."""
        apart = f"trials with a network are on {self.name} ({self.bridge}) and cannot reach each other"
        if not self.exposed:
            return f"{apart} or this machine"
        return (
            f"{apart}, but they can reach the addresses of Docker's machine: {self.exposed}. Let the training server "
            "and other services there listen on 127.0.0.1 or require a key (SKYRL_TX_API_KEY), or set the rule once "
            f"after each boot: run `{command('doctor docker')}` there as root"
        )


_open: dict[str | None, TrialNetwork] = {}  # by DOCKER_HOST
_lock = threading.Lock()


def trial_network() -> TrialNetwork:
    """Return the daemon's network of trials; created, and its host rules set, at this process's first call.

    Logs one warning when its containers can reach the daemon's machine. Raises EnvironmentFault when the daemon cannot
    create it, docker.errors.DockerException.
    """
    host = os.environ.get("DOCKER_HOST")
    with _lock:
        if host not in _open:
            found = _find() or _create()
            _open[host] = replace(found, exposed=set_rules(found.bridge))
            if _open[host].exposed:
                _log.warning("%s", _open[host].line)
        return _open[host]


def isolate_compose() -> None:
    """Keep containers of compose tasks from the daemon's machine, under the conditions of `trial_network`.

    The rule holds for all bridges of such projects, those made later too. Raises as `trial_network` does.
    """
    if not trial_network().exposed:
        with _lock:
            _set_compose_rules()


@functools.cache
def _set_compose_rules() -> None:
    if problem := set_rules(f"{COMPOSE_BRIDGES}+"):
        _log.warning("trials of compose tasks can reach the addresses of Docker's machine: %s", problem)


def forget_network() -> None:
    """Call it when the daemon no longer has the network: the next `trial_network` looks for it again."""
    with _lock:
        _open.pop(os.environ.get("DOCKER_HOST"), None)


@answered()
def open_for(tasks: Sequence[Path]) -> None:
    """Open the network before the first trial if a phase of one of these tasks uses it."""
    if any(uses_network(task) for task in tasks):
        trial_network()


def uses_network(task: Path) -> bool:
    """Return whether a container of the task joins the network of trials; Compose creates networks of its own."""
    config = task_config(task)
    if (task / "environment" / COMPOSE).exists():
        return False
    return network_modes(config) != {NetworkMode.NO_NETWORK}  # a phase that states none has the environment's


def _find() -> TrialNetwork | None:
    for network in engine().networks(filters={"label": f"{NETWORK}={VERSION}"}):
        return TrialNetwork(network["Id"], network["Name"], network["Labels"].get(BRIDGE, ""))
    return None


def _create() -> TrialNetwork:
    own = hashlib.sha256(str(engine().info()["ID"]).encode()).hexdigest()[:8]  # two daemons may share a machine
    try:
        _request(f"ht-{own}")
    except APIError as error:
        problem = str(error.explanation or error)
    else:
        problem = "it is not there"
    if (found := _find()) is not None:  # also where another process has created it
        return found
    raise EnvironmentFault(
        f"Docker cannot create the network {NAME} for trials: {' '.join(problem.split())[:200]}; remove unused "
        "networks (docker network prune) or add default-address-pools to the daemon's daemon.json"
    )


def _request(bridge: str) -> None:
    """Ask the daemon for the network. It refuses a second one with the same bridge."""
    options = {f"{_OPTION}name": bridge, f"{_OPTION}enable_icc": "false", f"{_OPTION}enable_ip_masquerade": "true"}
    engine().create_network(
        NAME,
        driver="bridge",
        check_duplicate=True,
        enable_ipv6=False,
        options=options | _default_mtu(),
        labels={LABEL: "1", NETWORK: VERSION, BRIDGE: bridge},
    )


def _default_mtu() -> dict[str, str]:
    """The default bridge's, which the daemon's configuration sets; other networks do not inherit it."""
    try:
        options = engine().inspect_network("bridge")["Options"] or {}
    except NotFound:
        return {}
    return {_MTU: options[_MTU]} if _MTU in options else {}
