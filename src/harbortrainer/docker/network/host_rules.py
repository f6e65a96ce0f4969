"""Packet filter rules that keep the containers of one bridge from this machine and from its cloud's metadata service.

For each bridge a chain behind INPUT and one behind FORWARD, named after it, in the table mangle: no rule of Docker's or
of a firewall in the table filter accepts what they drop, in whatever order they were set. They stay until boot, also
without the bridge: another process may be making it again at any moment. All functions block.
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
_TABLE = "mangle"
_INTERFACES = Path("/sys/class/net")
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))  # Docker reads the second for a stub
# Where clouds give a machine's own keys to whoever asks from it: AWS, GCP, Oracle, OpenStack; Azure; Alibaba.
_METADATA = ("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32")
_MARKS = Path("/run/harbortrainer")  # a file for each bridge whose rules are set; emptied at boot, as the rules are
_DAEMON = Path("/etc/docker/daemon.json")


def set_rules(bridge: str, marks: Path = _MARKS) -> str:
    """Drop what the bridge's containers send to this machine and to _METADATA, except DNS to the daemon's name servers
    and replies.

    A name that ends in "+" means every bridge whose name begins so. Safe to repeat. Returns why the rules could not be
    set; "" = they are set, by this process or by root since boot.
    """
    if not bridge.endswith("+") and not (_INTERFACES / bridge).exists():
        return "the Docker daemon does not run on this machine"
    if os.geteuid() != 0:
        return "" if (marks / bridge).exists() else "only root may set the rule that prevents it"
    if shutil.which("iptables") is None or shutil.which("iptables-restore") is None:
        return "the rule that prevents it needs the program iptables"
    problem = _run("iptables-restore", *_WAIT, "--noflush", given=_chains(bridge, list(name_servers())))
    if problem:
        return f"iptables refuses the rule that prevents it ({problem})"
    for jump in _jumps(bridge):
        check, insert = (("iptables", *_WAIT, "-t", _TABLE, action, *jump) for action in ("-C", "-I"))
        if _run(*check) and (problem := _run(*insert)):
            return f"iptables refuses the rule that prevents it ({problem})"
    with contextlib.suppress(OSError):
        marks.mkdir(exist_ok=True)
        (marks / bridge).touch()
    return ""


def name_servers(resolvers: tuple[Path, ...] = _RESOLVERS, daemon: Path = _DAEMON) -> Iterator[str]:
    """Yield IPv4 addresses of the name servers that this machine's Docker may hand to containers, without loopback."""
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


def _chains(bridge: str, servers: list[str]) -> str:
    """Input of iptables-restore, which applies all of it at once."""
    allowed = ["-m conntrack --ctstate ESTABLISHED,RELATED"]
    allowed += [f"-d {server} -p {protocol} --dport 53" for server in servers for protocol in ("udp", "tcp")]
    ends = [["-j DROP"], [f"-d {one} -j DROP" for one in _METADATA]]
    names = [jump[-1] for jump in _jumps(bridge)]
    lines = [f":{name} - [0:0]" for name in names]
    for name, end in zip(names, ends, strict=True):
        lines += [f"-A {name} {one}" for one in (*(f"{one} -j RETURN" for one in allowed), *end)]
    return "\n".join([f"*{_TABLE}", *lines, "COMMIT", ""])


def _jumps(bridge: str) -> tuple[tuple[str, ...], ...]:
    """The rules that lead to the bridge's chains: what goes to this machine, and what goes beyond it."""
    name = f"HARBORTRAINER-{bridge.rstrip('-+')}"  # with -F at most 28 characters
    return ("INPUT", "-i", bridge, "-j", name), ("FORWARD", "-i", bridge, "-j", f"{name}-F")


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
