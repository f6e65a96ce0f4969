"""Checks from a fresh container on the trials' network whether any address of a task's build answers."""

import logging
import re
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
LIMIT_SEC = 30  # for the container as a whole
MOST_ADDRESSES = 16
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d+)?")
_log = logging.getLogger("harbortrainer")
# $@: URLs. Also tries where the image's own package managers fetch from. Prints the hosts that take connections.
_SCRIPT = (
    f"""connect() {{
if command -v bash; then timeout {CONNECT_SEC} bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2"
elif command -v nc; then timeout {CONNECT_SEC} nc "$1" "$2" </dev/null
else timeout {CONNECT_SEC} wget -q -O /dev/null "http://$1:$2/" || [ $? = 8 ]; fi
}} >/dev/null 2>&1
"""
    + r"""for u in "$@" $({ env; cd /etc && cat apt/sources.list apt/sources.list.d/* apk/repositories yum.repos.d/* \
pip.conf npmrc uv/uv.toml /root/.npmrc /root/.config/pip/pip.conf /root/.pip/pip.conf /root/.config/uv/uv.toml; \
} 2>/dev/null | grep -oE 'https?://[^/ "]+' | sort -u | head -n 16); do
h=${u#*://} h=${h##*@} p=80
case $u in https*) p=443;; esac
case $h in *:*) p=${h##*:} h=${h%:*};; esac
{ connect "$h" "$p" && echo "$h"; } &
done
wait"""
)


async def network_works(task: Path, fault: str, run_id: str) -> bool:
    """Return whether, from the base of a task's Dockerfile, an address answers that it or the base fetches from.

    Addresses that `fault` names do not count. Without a base here nothing is known: False.
    """
    dockerfile = task / "environment" / "Dockerfile"
    text = with_other_bases(dockerfile.read_text(errors="replace")) if dockerfile.is_file() else ""
    base = next(iter([one for one in bases(text) if await call(is_here, one)]), None)
    if base is None:
        return False
    try:
        answering = await call(_answering, base, sorted(set(_URL.findall(text)))[:MOST_ADDRESSES], run_id)
    except (DockerException, requests.RequestException, EnvironmentFault) as error:
        _log.warning("the network could not be checked from a container: %s", one_line(error))
        return False
    return any(host.lower() not in fault for host in answering)


def _answering(image: str, urls: list[str], run_id: str) -> list[str]:
    """The hosts that answer a container of the image, which is removed. Blocking."""
    limits = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "pids_limit": 256, "mem_limit": "256m"}
    network = trial_network().id
    return run_once(image, _SCRIPT, urls, run_id, LIMIT_SEC, user="root", network_mode=network, **limits)[1].split()
