"""What a user may set of our Docker environment: environment_kwargs.NAME=VALUE."""

from collections.abc import Callable, Mapping
from typing import Any

from src.errors import UserError

KEEP = "keep_processes"
_NAMES = """AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE DAC_READ_SEARCH
FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE
NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE
SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM"""
_CAPABILITIES = frozenset(_NAMES.split())


def engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given` that are ours, checked, lists as tuples. Raises UserError: field, value, what it takes."""
    return {name: read(given[name]) for name, read in ENGINE_OPTIONS.items() if name in given}


def _pids_limit(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"environment_kwargs.pids_limit={value!r}: a number of processes; 0 = no limit")
    return value


def _allow_sudo(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"environment_kwargs.allow_sudo={value!r}: true or false")
    return value


def _cap_add(value: Any) -> tuple[str, ...]:
    names = _words("cap_add", value, "names of Linux capabilities, such as NET_RAW,SYS_PTRACE")
    names = tuple(name.upper().removeprefix("CAP_") for name in names)
    if wrong := [name for name in names if name not in _CAPABILITIES]:
        raise UserError(f"environment_kwargs.cap_add={wrong[0]}: not a Linux capability; such as NET_RAW,SYS_PTRACE")
    return names


def _keep_processes(value: Any) -> tuple[str, ...]:
    return _words(KEEP, value, "names of tasks, * for any part of one, such as web-*,serve-files")


def _words(name: str, value: Any, what: str) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word.strip() for word in words):
        raise UserError(f"environment_kwargs.{name}={value!r}: {what}")
    return tuple(word.strip() for word in words)


ENGINE_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "pids_limit": _pids_limit,
    "allow_sudo": _allow_sudo,
    "cap_add": _cap_add,
    KEEP: _keep_processes,
}
