"""Creates and starts the container of a trial, waits for its health, switches its network. All functions block."""

import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from harbortrainer.docker.box.archive import TooMuch, raise_for_status, url_of
from harbortrainer.docker.box.first_process import noted
from harbortrainer.docker.box.holders import Holders, Key
from harbortrainer.docker.box.terminals import limit_terminals
from harbortrainer.docker.daemon import engine, first_process, remove_container
from harbortrainer.docker.images.image import Image
from harbortrainer.docker.images.volumes import without_volumes
from harbortrainer.docker.integrity.living import fields_of
from harbortrainer.docker.keeping.ownership import RUN_ID, TRIAL, labels
from harbortrainer.docker.network.bridge import forget_network, trial_network
from harbortrainer.errors import UserError

HOSTNAME = "harbor"  # fixed: the prompts of a group are the same text
# PID 1 starts no other program, so none that the agent replaced. It survives `kill -9 -1`; the kernel reaps orphans for
# it (SIGCHLD is ignored; dash cannot do that, so there they stay zombies, as under Harbor). The image's entrypoint runs
# beside it and may end.
_SLEEPER = (
    'if [ $# != 0 ]; then "$@" & fi; S="exec sleep 1000000000"; '
    "command -v bash >/dev/null 2>&1 && exec bash -c \"trap '' CHLD; $S\"; $S"
)
# The same with a first shell that reads the container's stdin (first_shell.py): job control, so that it ignores no
# signal, a fork of its own, so that PID 1 is nothing but `sleep`. Without bash there is no first shell.
_WITH_SHELL = (
    'command -v bash >/dev/null 2>&1 && exec bash --noprofile --norc -c "set -m; exec 3<&0 4>&1 5>&2; '
    "( cd /; unset SHLVL; exec bash --noprofile --norc <&3 >&4 2>&5 3<&- 4>&- 5>&- ) & "
    "exec </dev/null >/dev/null 2>&1 3<&- 4>&- 5>&-; set +m; trap '' CHLD; exec sleep 1000000000\"; "
    "exec sleep 1000000000 </dev/null >/dev/null 2>&1"
)
_EXITING = 0x4  # PF_EXITING of Linux's include/linux/sched.h
_KILLED = 1 << (signal.SIGKILL - 1)  # among the signals that a process has not met yet
_LATE_SEC, _NAP_SEC = 5.0, 0.1  # after which a daemon knows that a container has ended
_ENTRYPOINT_COMMAND = ("sh", "-c", "sleep infinity")  # Harbor's
# Docker's default set without MKNOD, NET_RAW (packets of other containers) and SETPCAP. Package managers, su, and
# daemons that change user and listen below 1024 work with it.
_CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT",
)  # fmt: skip
_NONE = "none"
ROOT = ("", "0", "root")
FILE_RIGHTS = 0o644
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/hostname")  # Docker mounts them: no layer shows them
HOLDERS = Holders()
MOST_COMMITTED = 8 * 1024**3  # bytes, which the daemon writes, also those of a hole


@dataclass(frozen=True)
class ContainerSpec:
    """A container to start. `environment`: its variables. `cpus`, `memory_mb`: None = no limit; `pids_limit`: 0 = no
    limit.

    `allow_sudo`: setuid programs work for users other than root. `cap_add`: capabilities added to the default ones.
    `own_network`: a network namespace that no other trial has used.
    """

    image: Image
    name: str
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    networked: bool = True
    cpus: float | None = None
    memory_mb: int | None = None
    pids_limit: int = 0
    gpus: int = 0
    mounts: Sequence[Mount] = ()
    allow_sudo: bool = False
    cap_add: Sequence[str] = ()
    own_network: bool = False

    @property
    def may_share(self) -> bool:
        """Whether an earlier trial's network namespace will do.

        Not where something runs before the first command of the trial, or a capability could change the namespace.
        """
        mounted = any(mount["Target"] in NETWORK_FILES for mount in self.mounts)
        starts = self.image.entrypoint or self.image.healthcheck
        return not (self.own_network or self.cap_add or starts or mounted)

    @property
    def has_shell(self) -> bool:
        """Whether a root shell starts with the container. Where the image starts something, its stdout is a log."""
        return self.image.user in ROOT and not self.image.entrypoint and os.geteuid() == 0

    @property
    def key(self) -> Key:
        return Key(os.environ.get("DOCKER_HOST"), self.labels[RUN_ID], self.networked)


def container_name(session_id: str) -> str:
    """Return a name that Docker accepts; unique, since the container of an earlier attempt may still exist.

    The policy can look it up by DNS: it does not say whether a trial is of training or of an evaluation.
    """
    plain = re.sub(r"[^a-zA-Z0-9_.-]", "-", re.sub(r"^[se](?=\d{6})", "", session_id))
    return f"ht-{plain[:80]}-{secrets.token_hex(4)}"


def start_container(spec: ContainerSpec) -> None:
    """Create and start a container; remove it if it does not start.

    Raises docker.errors.ImageNotFound, APIError; UserError for a capability that Docker refuses; EnvironmentFault.
    """
    if spec.may_share and (holder := HOLDERS.take(spec.name, spec.key, lambda name: _start_holder(name, spec))):
        try:
            return _start(spec, holder)
        except APIError as error:
            HOLDERS.failed(spec.name)
            if isinstance(error, ImageNotFound):
                raise
            # otherwise somebody may have stopped the holder
    return _with_network(lambda: _start(spec))


def container_ended(spec: ContainerSpec) -> None:
    """Call it once the container of `spec` is gone."""
    HOLDERS.ended(spec.name, spec.key)


def _start_holder(name: str, spec: ContainerSpec) -> str:
    """A container that only waits, in a namespace as `spec` asks for."""
    client = engine()

    def start() -> str:
        created = client.create_container(
            spec.image.reference,
            name=name,
            hostname=HOSTNAME,
            entrypoint=["sh", "-c", "exec sleep 1000000000"],
            command=[],
            labels={name: value for name, value in spec.labels.items() if name != TRIAL},
            user="0",
            stop_signal="SIGKILL",
            host_config=client.create_host_config(
                network_mode=_network(spec),
                log_config=LogConfig(type="none"),
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                pids_limit=8,
            ),
        )
        client.start(created["Id"])
        return created["Id"]

    return _with_network(start)


def _start(spec: ContainerSpec, holder: str | None = None) -> None:
    client = engine()
    try:
        _create(client, spec, holder)
    except APIError as error:
        if spec.cap_add and error.status_code == HTTPStatus.BAD_REQUEST:
            asked = ",".join(spec.cap_add)
            raise UserError(f"environment_kwargs.cap_add={asked}: Docker refuses it: {error.explanation}") from error
        raise
    with contextlib.ExitStack() as undo:
        undo.callback(remove_container, spec.name)
        client.start(spec.name)
        if not spec.has_shell and os.geteuid() == 0:
            with contextlib.suppress(OSError):  # its processes are not of this machine
                limit_terminals(first_process(client.inspect_container(spec.name)))
        undo.pop_all()


def _create(client: docker.APIClient, spec: ContainerSpec, holder: str | None) -> None:
    client.create_container(
        without_volumes(spec.image.reference) if spec.image.volumes else spec.image.reference,
        name=spec.name,
        hostname=None if holder else HOSTNAME,  # the namespace's
        entrypoint=["sh", "-c", _WITH_SHELL if spec.has_shell else _SLEEPER, "sh"],
        stdin_open=spec.has_shell,
        user="root" if spec.has_shell else None,  # by name, as for an exec: with root's groups
        command=[*spec.image.entrypoint, *_ENTRYPOINT_COMMAND] if spec.image.entrypoint else [],
        labels=dict(spec.labels),
        environment=dict(spec.environment),
        stop_signal="SIGKILL",  # PID 1 ignores all others
        host_config=_host_config(spec, f"container:{holder}" if holder else _network(spec)),
    )


def _network(spec: ContainerSpec) -> str:
    return trial_network().id if spec.networked else _NONE


def _host_config(spec: ContainerSpec, network: str) -> dict[str, Any]:
    return engine().create_host_config(
        network_mode=network,
        cpu_period=100_000 if spec.cpus else None,  # not nano_cpus: the daemon refuses more than it has
        cpu_quota=int(spec.cpus * 100_000) if spec.cpus else None,
        mem_limit=f"{spec.memory_mb}m" if spec.memory_mb else None,
        memswap_limit=f"{spec.memory_mb}m" if spec.memory_mb else None,
        pids_limit=spec.pids_limit or None,
        device_requests=[DeviceRequest(count=spec.gpus, capabilities=[["gpu"]])] if spec.gpus else None,
        mounts=list(spec.mounts),
        log_config=LogConfig(type="json-file", config={"max-size": "1m"})
        if spec.image.entrypoint
        else LogConfig(type="none"),  # nothing prints there
        cap_drop=["ALL"],
        cap_add=[*_CAPABILITIES, *spec.cap_add],
        security_opt=[] if spec.allow_sudo else ["no-new-privileges"],
        ulimits=[Ulimit(name="core", soft=0, hard=0)],  # open files stay: the daemon may be unable to raise them
        shm_size="64m",
    )


def is_running(name: str) -> bool:
    """Return whether the container runs, unpaused; once its first process has ended, the daemon has seconds to know it.

    Raises docker.errors.APIError when the container was removed.
    """
    give_up = time.monotonic() + _LATE_SEC
    while (state := engine().inspect_container(name)["State"])["Running"] and not _lives(state["Pid"]):
        if time.monotonic() > give_up:
            one = noted(name)
            return one is None or one.pid != state["Pid"]  # then its processes are of another machine
        time.sleep(_NAP_SEC)
    return state["Running"] and not state["Paused"]


def _lives(pid: int) -> bool:
    """Whether a process of this machine has not begun to end."""
    fields = fields_of(pid)
    return (
        fields is not None and fields[0] not in "ZX" and not int(fields[6]) & _EXITING and not int(fields[28]) & _KILLED
    )


def committed(name: str, run_id: str) -> str:
    """Return the ID of an image of the container as it is now.

    Raises TooMuch when its own files are larger than MOST_COMMITTED, holes included, or in volumes; APIError.
    """
    with engine().get(url_of(name, "json"), params={"size": 1}) as answer:
        raise_for_status(answer)
        found = answer.json()
    if any(one["Type"] == "volume" for one in found["Mounts"]):
        raise TooMuch(f"container {name} has files in volumes, which no image of it has")
    if (size := found.get("SizeRw", 0)) > MOST_COMMITTED:
        raise TooMuch(f"container {name} has {size >> 30} GiB of its own files, too much for a second one")
    made = engine().commit(name, conf={"Labels": labels(run_id)})
    return made["Id"]


def wait_healthy(name: str, seconds: float) -> None:
    """Wait for the HEALTHCHECK of the image, as `docker compose up --wait` does. Raises RuntimeError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = engine().inspect_container(name)["State"]
        health = state.get("Health", {}).get("Status", "healthy")
        if health == "healthy":
            return
        if health == "unhealthy" or not state["Running"]:
            raise RuntimeError(f"container {name}: the image's HEALTHCHECK reports {health}")
        time.sleep(0.2)
    raise RuntimeError(f"container {name}: not healthy after {seconds:.0f} seconds")


def set_networked(name: str, networked: bool) -> None:
    """Move a running container between the network of trials and no network at all."""
    client = engine()
    owner = HOLDERS.of(name) or name

    def move() -> None:
        gone, new = (_NONE, trial_network().id) if networked else (trial_network().id, _NONE)
        if networked:
            client.inspect_network(new)  # raises NotFound while the container can still be moved
        client.disconnect_container_from_network(owner, gone, force=True)
        client.connect_container_to_network(owner, new)

    _with_network(move)


def _with_network[T](work: Callable[[], T]) -> T:
    """Do the work; once more if the network of trials was removed since (`docker network prune`)."""
    try:
        return work()
    except NotFound as error:
        if isinstance(error, ImageNotFound) or "network" not in str(error.explanation):
            raise
    forget_network()
    return work()
