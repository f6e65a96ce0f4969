"""Decides whether a verifier that could not install is the network's fault or the trial's.

A policy can break the network of its own container (name servers, proxies, certificates). What a fresh container
reaches tells the two apart: only where the network itself fails, the trial has no grade.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from pathlib import Path

from docker.errors import DockerException
from harbor.models.task.config import NetworkMode, TaskConfig
from harbor.models.task.verifier_mode import (
    VerifierEnvironmentMode,
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
)

from harbortrainer.docker.box.compose import COMPOSE
from harbortrainer.docker.images import image as images
from harbortrainer.docker.network.reach import Address, Reach, State, address_of
from harbortrainer.harbor import task_config
from harbortrainer.venues.harbor.install import code, outputs, scripts

_URL = re.compile(r"(?P<scheme>https?)://(?:[^\s/@\"']*@)?(?P<host>[\w.-]+)(?::(?P<port>\d+))?")
_TROUBLE = re.compile(
    r"fail|could not|cannot|unable|error|temporary|refused|timed out|unreachable|retr(?:y|ies)|not known"
    r"|ENOTFOUND|EAI_AGAIN|Err:",
    re.IGNORECASE,
)
# Where reports of curl, apt, wget, pip, uv and npm name a host without a URL.
_NAMED = re.compile(
    r"(?:[Cc]ould not resolve host: |resolving '|resolve host address ['\u2018\u201c]?|bad address '|ENOTFOUND "
    r"|EAI_AGAIN |host='|[Cc]onnect(?:ing)? to (?!server\b))"
    r"(?P<host>[\w.-]+\w)(?:',)?(?: port[= ]|:)?(?P<port>\d+)?"
)
_LOCAL = ("localhost", "127.", "0.0.0.0")


# Tries addresses from a fresh container of an image (None = from this process) of a run. Returns None when it cannot.
Check = Callable[[str | None, Iterable[Address], str], Awaitable[Reach | None]]


async def is_networks_fault(task: Path, trial: Path, check: Check, run_id: str) -> bool:
    """Tell if the verifier, whose output in `trial` shows that it could not install, could not because of the network.

    False for a verifier without a network. True for one in a container of its own, which no policy reaches. Otherwise
    `check` tries the addresses that the verifier's scripts and its output name; true when it cannot.
    """
    config = task_config(task)
    if not verifier_has_network(config):
        return False
    if not _is_shared(config):
        return True
    scripted, named = scripted_addresses(task), named_addresses("\n".join(outputs(trial)))
    reach = await check(await _image(task, config), {*scripted, *named}, run_id)
    return reach is None or blames_network(scripted, named, reach)


def blames_network(scripted: Collection[Address], named: Collection[Address], reach: Reach) -> bool:
    """`scripted`: what the verifier's scripts fetch from; `named`: what its output complains about.

    A policy cannot change the scripts, nor the image's own package sources: the network is at fault when one of their
    addresses cannot be reached. An address that only the output names may be a proxy or an index that the policy has
    set. It counts if it looks like an index (a name with port 80 or 443), and, where addresses of the scripts or the
    image were tried too, if its name resolves.
    """
    reported = {address.host for address in named}
    states = {**reach.states, **reach.image}
    trusted = {*scripted, *(address for address in reach.image if address.host in reported)}
    hosts = {address.host for address in trusted}
    others = [address for address in named if address.host not in hosts and address.is_usual]
    if trusted:
        down = any(states.get(address) is not State.REACHED for address in trusted)
        return down or any(states.get(address) is State.CLOSED for address in others)
    if others:
        return any(states.get(address) is not State.REACHED for address in others)
    return State.REACHED not in reach.image.values()


def verifier_has_network(config: TaskConfig) -> bool:
    """Return whether a verifier of the task may use the network."""
    verifiers = [config.verifier, *(step.verifier for step in config.steps or ())]
    modes = set()
    for verifier in verifiers:
        environment = verifier.environment or config.environment
        modes.add(verifier.network_mode or environment.network_mode or NetworkMode.PUBLIC)
    return modes != {NetworkMode.NO_NETWORK}


def scripted_addresses(task: Path) -> set[Address]:
    """Return the addresses of the URLs in the shell scripts of the task's verifier."""
    return set(_addresses(_URL, "\n".join(code(file) for file in scripts(task))))


def named_addresses(output: str) -> set[Address]:
    """Return the addresses in the lines of a verifier's output that report trouble."""
    found: set[Address] = set()
    for line in output.splitlines():
        if _TROUBLE.search(line):
            found.update(_addresses(_URL, line))
            hosts = {address.host for address in found}
            found |= {one for one in _addresses(_NAMED, line) if one.host not in hosts}
    return found


def _addresses(pattern: re.Pattern[str], text: str) -> Iterator[Address]:
    for match in pattern.finditer(text):
        address = address_of(match["host"], match["port"], match.groupdict().get("scheme") or "https")
        if address is not None and not address.host.startswith(_LOCAL):
            yield address


def _is_shared(config: TaskConfig) -> bool:
    modes = {resolve_step_verifier_mode(config, step) for step in config.steps or ()}
    return VerifierEnvironmentMode.SHARED in (modes or {resolve_task_verifier_mode(config)})


async def _image(task: Path, config: TaskConfig) -> str | None:
    """The task's image; None for Compose, which names images after trials, and where Docker has no image."""
    environment = task / "environment"
    if (environment / COMPOSE).exists():
        return None
    try:
        return (await images.task_image(environment, config.environment.docker_image)).reference
    except (images.ImageError, DockerException):  # it was removed, and cannot be made again now
        return None
