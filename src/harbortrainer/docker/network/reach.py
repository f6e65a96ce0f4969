"""Checks from a fresh container on the trials' network which addresses can be reached: no policy has changed it."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import requests
from docker.errors import DockerException

from harbortrainer.docker.box.one_off import run_once
from harbortrainer.docker.daemon import call
from harbortrainer.docker.images.builds import bases, is_here
from harbortrainer.docker.images.origins import with_other_bases
from harbortrainer.docker.network.bridge import trial_network
from harbortrainer.errors import EnvironmentFault, one_line

CONNECT_SEC = 5  # for each address; all are tried at once
KEEP_SEC = 10.0  # for which one answer serves the trials that ask for the same
LIMIT_SEC = 30  # for the container as a whole
MOST_ADDRESSES = 16
_LABEL = "[A-Za-z0-9][A-Za-z0-9-]{0,62}"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://([A-Za-z0-9.-]+)(?::(\d+))?")
_log = logging.getLogger("harbortrainer")
# $@: HOST:PORT. Also tries where the image's own package managers fetch from: its files are not the policy's.
_SCRIPT = (
    f"""connect() {{
if command -v bash; then timeout {CONNECT_SEC} bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2"
elif command -v nc; then timeout {CONNECT_SEC} nc "$1" "$2" </dev/null
else timeout {CONNECT_SEC} wget -q -O /dev/null "http://$1:$2/" || [ $? = 8 ]; fi
}} >/dev/null 2>&1
try() {{
s=unknown
if connect "$2" "$3"; then s=reached; elif timeout {CONNECT_SEC} getent hosts "$2" >/dev/null 2>&1; then s=closed; fi
echo "$1 $2 $3 $s"
}}
"""
    + r"""for a; do try asked "${a%:*}" "${a##*:}" & done
for u in $({ env; cd /etc && cat apt/sources.list apt/sources.list.d/* apk/repositories yum.repos.d/* pip.conf npmrc \
uv/uv.toml /root/.npmrc /root/.config/pip/pip.conf /root/.pip/pip.conf /root/.config/uv/uv.toml; } 2>/dev/null \
| grep -oE 'https?://[^/ "]+' | sort -u | head -n 16); do
h=${u#*://} h=${h##*@} p=80
case $u in https*) p=443;; esac
case $h in *:*) p=${h##*:} h=${h%:*};; esac
try image "$h" "$p" &
done
wait"""
)


class State(StrEnum):
    REACHED = "reached"  # takes connections
    CLOSED = "closed"  # it has a name that resolves, but takes no connection
    UNKNOWN = "unknown"  # neither


@dataclass(frozen=True, slots=True, order=True)
class Address:
    host: str
    port: int

    @property
    def is_usual(self) -> bool:
        """Whether it is a name with the port of its scheme, as package indexes have; a proxy mostly has another."""
        return self.port in _PORTS.values() and not re.fullmatch(r"[\d.]+", self.host)


@dataclass(frozen=True, slots=True)
class Reach:
    """A reach. `states`: of the addresses asked for; `image`: of those that the image's package managers fetch from."""

    states: Mapping[Address, State]
    image: Mapping[Address, State] = field(default_factory=dict)


def address_of(host: str, port: str | int | None = None, scheme: str = "https") -> Address | None:
    """Return the address that a text names; None = it is not a host name or IPv4 address."""
    number = int(port or _PORTS.get(scheme, 443))
    return Address(host.lower(), number) if _HOST.fullmatch(host) and 0 < number < 65536 else None


class NetworkCheck:
    """Remembers each answer for KEEP_SEC, so that trials which fail together cause one container. One for each run."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str | None, tuple[Address, ...]], tuple[float, asyncio.Task[Reach | None]]] = {}

    async def __call__(self, image: str | None, addresses: Iterable[Address], run_id: str) -> Reach | None:
        """Try all addresses at once, from a container of `image`; None = from this process.

        Returns None when Docker cannot run the container.
        """
        asked = tuple(sorted(set(addresses)))[:MOST_ADDRESSES]
        now = time.monotonic()
        self._asked = {key: one for key, one in self._asked.items() if not one[1].done() or now - one[0] < KEEP_SEC}
        if (image, asked) not in self._asked:
            work = from_here(asked) if image is None else from_container(image, asked, run_id)
            self._asked[image, asked] = now, asyncio.create_task(work)
        return await asyncio.shield(self._asked[image, asked][1])


async def from_container(image: str, addresses: Iterable[Address], run_id: str) -> Reach | None:
    """Start a container of the image on the trials' network, and remove it. Returns None when Docker cannot."""
    try:
        return parse(await call(_tried, image, list(addresses)[:MOST_ADDRESSES], run_id))
    except (DockerException, requests.RequestException, EnvironmentFault) as error:
        _log.warning("the network could not be checked from a container: %s", one_line(error))
        return None


async def network_works(task: Path, fault: str, run_id: str) -> bool:
    """Return whether, from the base of a task's Dockerfile, an address answers that it or the base fetches from.

    Addresses that `fault` names do not count. Without a base here nothing is known: False.
    """
    dockerfile = task / "environment" / "Dockerfile"
    text = with_other_bases(dockerfile.read_text(errors="replace")) if dockerfile.is_file() else ""
    base = next(iter([one for one in bases(text) if await call(is_here, one)]), None)
    named = {address_of(host, port or None, scheme) for scheme, host, port in _URL.findall(text)}
    found = None if base is None else await from_container(base, filter(None, named), run_id)
    states = {} if found is None else {**found.image, **found.states}
    return any(state is State.REACHED and one.host not in fault for one, state in states.items())


async def from_here(addresses: Sequence[Address]) -> Reach:
    """Try the addresses from this process."""
    return Reach(dict(zip(addresses, await asyncio.gather(*map(_connect, addresses)), strict=True)))


def parse(text: str) -> Reach:
    """Return the script's lines: asked or image, host, port, state."""
    found: dict[str, dict[Address, State]] = {"asked": {}, "image": {}}
    for line in text.splitlines():
        match line.split():
            case [("asked" | "image") as kind, host, port, state] if state in list(State) and port.isdigit():
                if (address := address_of(host, port)) is not None:
                    found[kind][address] = State(state)
    return Reach(found["asked"], found["image"])


def _tried(image: str, addresses: Sequence[Address], run_id: str) -> str:
    """What the script prints. Blocking."""
    asked = [f"{one.host}:{one.port}" for one in addresses]
    limits = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "pids_limit": 256, "mem_limit": "256m"}
    network = trial_network().id
    return run_once(image, _SCRIPT, asked, run_id, LIMIT_SEC, user="root", network_mode=network, **limits)[1]


async def _connect(address: Address) -> State:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_SEC):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.close()
            return State.REACHED
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_SEC):
            await asyncio.get_running_loop().getaddrinfo(address.host, address.port)
            return State.CLOSED
    return State.UNKNOWN
