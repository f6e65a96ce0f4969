"""Packet filter rules of this machine that keep the containers of one bridge from connecting to the machine itself.

One chain for each bridge, named after it, and one rule in INPUT that leads there. All functions block.
"""

import contextlib
import ipaddress
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harbortrainer.errors import one_line

COMPOSE_BRIDGES = "hc-"  # begins the names of the bridges of compose projects; the kernel allows 15 characters
_LIMIT_SEC = 30
_WAIT = ("-w", "10")  # seconds for the lock that other programs hold
_INTERFACES = Path("/sys/class/net")
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))  # Docker reads the second for a stub
_MARKS = Path("/run/harbortrainer")  # a file for each bridge whose rules are set; emptied at boot, as the rules are
_DAEMON = Path("/etc/docker/daemon.json")


def set_rules(bridge: str) -> str:
    """Drop what the bridge's containers send to this machine, except DNS to the daemon's name servers and replies.

    A name that ends in "+" means every bridge whose name begins so. Safe to repeat. Returns why the rules could not be
    set; "" = they are set, by this process or by root since boot.
    """
    if not bridge.endswith("+") and not (_INTERFACES / bridge).exists():
        return "the Docker daemon does not run on this machine"
    if os.geteuid() != 0:
        return "" if (_MARKS / bridge).exists() else "only root may set the rule that prevents it"
    if shutil.which("iptables") is None or shutil.which("iptables-restore") is None:
        return "the rule that prevents it needs the program iptables"
    problem = _run("iptables-restore", *_WAIT, "--noflush", given=_chain(bridge, list(name_servers())))
    if problem:
        return f"iptables refuses the rule that prevents it ({problem})"
    jump = _jump(bridge)
    if _run("iptables", *_WAIT, "-C", *jump) and (problem := _run("iptables", *_WAIT, "-I", *jump)):
        return f"iptables refuses the rule that prevents it ({problem})"
    with contextlib.suppress(OSError):
        _MARKS.mkdir(exist_ok=True)
        (_MARKS / bridge).touch()
    return ""


def remove_rules(bridge: str) -> None:
    """Remove the bridge's chain and every rule that leads to it. Does nothing without the right to."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        return
    while not _run("iptables", *_WAIT, "-D", *_jump(bridge)):  # two processes may have added one each
        pass
    for action in ("-F", "-X"):
        _run("iptables", *_WAIT, action, _name(bridge))
    (_MARKS / bridge).unlink(missing_ok=True)


def name_servers(resolvers: tuple[Path, ...] = _RESOLVERS, daemon: Path = _DAEMON) -> Iterator[str]:
    """IPv4 addresses of the name servers that this machine's Docker may hand to containers, without loopback."""
    found: list[str] = []
    for file in resolvers:
        lines = [line.split() for line in _text(file).splitlines()]
        found += [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    try:
        configured = json.loads(_text(daemon) or "{}")
    except ValueError:
        configured = {}
    found += configured.get("dns") or [] if isinstance(configured, dict) else []
    for text in dict.fromkeys(map(str, found)):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if address.version == 4 and not address.is_loopback:
            yield text


def _chain(bridge: str, servers: list[str]) -> str:
    """Input of iptables-restore, which applies all of it at once."""
    name = _name(bridge)
    dns = [
        f"-A {name} -d {server} -p {protocol} --dport 53 -j RETURN" for server in servers for protocol in ("udp", "tcp")
    ]
    lines = [f"-A {name} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN", *dns, f"-A {name} -j DROP"]
    return "\n".join(["*filter", f":{name} - [0:0]", *lines, "COMMIT", ""])


def _name(bridge: str) -> str:
    return f"HARBORTRAINER-{bridge.rstrip('-+')}"  # at most 28 characters


def _jump(bridge: str) -> tuple[str, ...]:
    return "INPUT", "-i", bridge, "-j", _name(bridge)


def _run(*command: str, given: str = "") -> str:
    """The command's complaint, in one line; "" = it succeeded."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=_LIMIT_SEC)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error) or type(error).__name__
    return "" if done.returncode == 0 else one_line(done.stderr) or f"exit {done.returncode}"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
