"""A task's own compose file under Harbor's compose environment: what we lay on top of it."""

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harbortrainer.docker import cleaning
from harbortrainer.errors import UserError

COMPOSE = "docker-compose.yaml"
MAIN = "main"  # Harbor's name of the service that the agent works in


class _Loader(yaml.SafeLoader):
    """Compose's own tags (!reset, !override) are read as what they stand before."""


def read_compose(file: Path) -> dict[str, dict[str, Any]]:
    """A compose file's services, networks and volumes by name. Raises UserError naming the file."""
    try:
        document = yaml.load(file.read_text(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a compose file ({' '.join(str(error).split())[:200]}); mend it") from None
    if not isinstance(document, dict):
        document = {}
    return {part: _table(document.get(part)) for part in ("services", "networks", "volumes")}


def overlay(environment_dir: Path, run_id: str, *, prebuilt: bool) -> Path:
    """A compose file on top of those of an environment: no ten seconds of tear-down, and our labels for the reaper.

    `prebuilt`: the main service comes from an image. Raises UserError when the folder's compose file cannot be read.
    """
    own = environment_dir / COMPOSE
    given = read_compose(own) if own.exists() else {"services": {}, "networks": {}, "volumes": {}}
    labels = cleaning.labels(run_id)
    services = {name: _service(_table(service), labels) for name, service in ({MAIN: {}} | given["services"]).items()}
    if not prebuilt:
        services[MAIN] |= _built(labels)
    content: dict[str, Any] = {"services": services, "networks": _labelled({"default": {}} | given["networks"], labels)}
    if volumes := _labelled(given["volumes"], labels):
        content["volumes"] = volumes
    text = json.dumps(content, sort_keys=True)
    path = _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        path.write_text(text)
    return path


def _service(given: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    own = {"init": True, "stop_grace_period": "0s", "labels": labels}
    return own | (_built(labels) if "build" in given else {})


def _built(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"build": {"labels": labels}}  # compose names an image after the trial: it goes with its owner


def _labelled(things: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Those that compose makes, not those that it finds."""
    return {name: {"labels": labels} for name, thing in things.items() if not _table(thing).get("external")}


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
