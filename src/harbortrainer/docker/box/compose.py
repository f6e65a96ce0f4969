"""Reads a task's compose file, and writes one to lay over it: labels for clean-up, an immediate stop, named bridges."""

import atexit
import functools
import json
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping.ownership import labels
from harbortrainer.docker.network.host_rules import COMPOSE_BRIDGES
from harbortrainer.errors import UserError

COMPOSE = "docker-compose.yaml"
MAIN = "main"  # Harbor's name of the service that the agent works in
_OVERLAY = "harbortrainer.overlay"  # a label of every service's container: the name of its trial's overlay
_BRIDGE_NAME = "com.docker.network.bridge.name"
_HOST = "host-gateway"  # a task that names Docker's machine in its hosts file means to reach it


class _Loader(yaml.SafeLoader):
    """Ignores Compose's own tags (!reset, !override), and reads the values behind them."""


def read_compose(file: Path) -> dict[str, dict[str, Any]]:
    """Return a compose file's services, networks and volumes by name. Raises UserError naming the file."""
    try:
        document = yaml.load(file.read_text(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a compose file ({' '.join(str(error).split())[:200]}); mend it") from None
    return {part: _table(_table(document).get(part)) for part in ("services", "networks", "volumes")}


def overlay(environment_dir: Path, run_id: str, *, prebuilt: bool) -> Path:
    """Return a compose file to lay over one trial's: labels everything, and stops services without the usual 10 s.

    Bridges get names of their own that begin with COMPOSE_BRIDGES, unless the file asks for the host's address.
    `prebuilt`: the main service comes from an image. Raises UserError when the folder's compose file cannot be read.
    """
    own = environment_dir / COMPOSE
    given = read_compose(own) if own.exists() else {"services": {}, "networks": {}, "volumes": {}}
    marks, path = {"labels": labels(run_id)}, _folder() / f"{secrets.token_hex(8)}.json"
    own_marks = {"labels": marks["labels"] | {_OVERLAY: path.stem}}
    services = {}
    for name, service in ({MAIN: {}} | given["services"]).items():
        services[name] = {"init": True, "stop_grace_period": "0s", **own_marks}
        if "build" in _table(service) or (name == MAIN and not prebuilt):
            services[name]["build"] = marks  # compose names an image after the trial, so it goes with the trial
    content: dict[str, Any] = {"services": services}
    content |= _made("volumes", given["volumes"], marks)
    content |= _made("networks", {"default": {}} | given["networks"], marks)
    if not (own.exists() and _HOST in own.read_text()):
        bridges = [one for name, one in content.get("networks", {}).items() if _is_bridge(given["networks"].get(name))]
        token = secrets.token_hex(4)
        for i, network in enumerate(bridges):
            network["driver_opts"] = {_BRIDGE_NAME: f"{COMPOSE_BRIDGES}{token}{i:x}"}
    path.write_text(json.dumps(content))
    return path


def service_containers(overlay: Path, service: str, *, stopped: bool = False) -> list[str]:
    """Return the service's containers that run, in the trial of this overlay. Blocks. Raises DockerException."""
    marks = [f"{_OVERLAY}={overlay.stem}", f"com.docker.compose.service={service}", "com.docker.compose.oneoff=False"]
    return [one["Id"] for one in engine().containers(all=stopped, filters={"label": marks})]


def _made(part: str, things: dict[str, Any], marks: dict[str, Any]) -> dict[str, Any]:
    """The networks or volumes of a part that the project creates, with `marks`; nothing when there are none."""
    made = {name: dict(marks) for name, thing in things.items() if not _table(thing).get("external")}
    return {part: made} if made else {}


def _is_bridge(network: Any) -> bool:
    """Whether a network is a bridge whose name the task leaves open."""
    given = _table(network)
    return given.get("driver", "bridge") == "bridge" and _BRIDGE_NAME not in _table(given.get("driver_opts"))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tagged(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_Loader.add_multi_constructor("!", _tagged)


@functools.cache
def _folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="harbortrainer-compose-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
