"""Reads a task's compose file, and writes one to lay over it: labels for clean-up, and an immediate stop."""

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from harbortrainer.docker.cleaning import labels
from harbortrainer.errors import UserError

COMPOSE = "docker-compose.yaml"
MAIN = "main"  # Harbor's name of the service that the agent works in


class _Loader(yaml.SafeLoader):
    """Ignores Compose's own tags (!reset, !override), and reads the values behind them."""


def read_compose(file: Path) -> dict[str, dict[str, Any]]:
    """A compose file's services, networks and volumes by name. Raises UserError naming the file."""
    try:
        document = yaml.load(file.read_text(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a compose file ({' '.join(str(error).split())[:200]}); mend it") from None
    return {part: _table(_table(document).get(part)) for part in ("services", "networks", "volumes")}


def overlay(environment_dir: Path, run_id: str, *, prebuilt: bool) -> Path:
    """A compose file to lay over an environment's: labels everything, and stops services without the usual 10 s.

    `prebuilt`: the main service comes from an image. Raises UserError when the folder's compose file cannot be read.
    """
    own = environment_dir / COMPOSE
    given = read_compose(own) if own.exists() else {"services": {}, "networks": {}, "volumes": {}}
    marks = {"labels": labels(run_id)}
    services = {}
    for name, service in ({MAIN: {}} | given["services"]).items():
        services[name] = {"init": True, "stop_grace_period": "0s", **marks}
        if "build" in _table(service) or (name == MAIN and not prebuilt):
            services[name]["build"] = marks  # compose names an image after the trial, so it goes with the trial
    content: dict[str, Any] = {"services": services}
    for part, things in (("networks", {"default": {}} | given["networks"]), ("volumes", given["volumes"])):
        if made := {name: marks for name, thing in things.items() if not _table(thing).get("external")}:
            content[part] = made
    text = json.dumps(content, sort_keys=True)
    path = _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        path.write_text(text)
    return path


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
