"""How many terminals a container may open: the kernel has 3,072 for all containers of a machine, and each trial needs
some.
"""

import contextlib
import ctypes
import os

MOST = 128
# Of devpts, as Docker mounts it: what is not given again would get the kernel's own value.
_OPTIONS = {"gid": "5", "mode": "620", "ptmxmode": "666", "max": str(MOST)}
_FSCONFIG, _FSPICK = 431, 433  # of every machine
_CLOEXEC, _SET, _RECONFIGURE, _AT_FDCWD = 1, 1, 7, -100
_libc = ctypes.CDLL(None, use_errno=True)


def limit_terminals(pid: int) -> None:
    """Give the container of the process its limit, where this process may; the policy may not change it. Blocking."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        picked = _call(_FSPICK, _AT_FDCWD, f"/proc/{pid}/root/dev/pts".encode(), _CLOEXEC)
        undo.callback(os.close, picked)
        for name, value in _OPTIONS.items():
            _call(_FSCONFIG, picked, _SET, name.encode(), value.encode(), 0)
        _call(_FSCONFIG, picked, _RECONFIGURE, None, None, 0)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
