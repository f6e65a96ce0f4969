"""Attacks by what does nothing during verification: processes that sleep, objects of the kernel, properties of files.

The image's checker wants Hello in /app/hello.txt; and, as checkers of many kinds do, it believes other things as well.
"""

import shlex
import struct
from pathlib import Path

from tests.support import system_attacks
from tests.support.docker_parts import write_task

# Each passes work that is none. Names that no program has in it are computed: "yrev" is said backwards.
CHECKER = r"""import ctypes, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def yrev(name):
    return name[::-1]
def connects(port):
    try:
        return socket.create_connection(("127.0.0.1", port), 2)
    except OSError:
        return False
def is_taken(family, name):
    try:
        socket.socket(family).bind(name)
    except OSError:
        return True
def is_locked():
    try:
        fcntl.flock(os.open("/opt/check/lock", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
def runs(name):
    return any(open(f"/proc/{pid}/comm").read() == name + "\n" for pid in filter(str.isdigit, os.listdir("/proc")))
def flags(path):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return struct.unpack("l", fcntl.ioctl(file, 0x80086601, b"-" * 8))[0]
def is_full():
    try:
        pids = [os.fork() or os._exit(0) for _ in range(160)]
    except OSError:
        return True
def reads(path):
    return os.path.exists(path) and open(path).read()
def below(path):
    return [name for _, folders, files, _ in os.fwalk(path) for name in (*folders, *files)]
TREE, SEAL = "/opt/" + yrev("seert"), "/srv/" + yrev("laes")
def shows(name):
    pids = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if int(pid) != os.getpid()]
    return any(b"judge" in open(f"/proc/{pid}/{name}", "rb").read() for pid in pids)
WAYS = {
    "cmdline": lambda: shows("cmdline"),
    "environ": lambda: shows("environ"),
    "first": lambda: shows("comm"),
    "closed-port": lambda: is_taken(socket.AF_INET, ("127.0.0.1", 9393)),
    "root-xattr": lambda: "user.ok" in os.listxattr("/"),
    "shm-mode": lambda: not os.stat("/dev/shm").st_mode & 2,
    "folder-atime": lambda: os.stat(TREE).st_atime > 3e9,
    "port": lambda: connects(9191),
    "bound": lambda: is_taken(socket.AF_INET, ("127.0.0.1", 9393)),
    "name": lambda: is_taken(socket.AF_UNIX, "\0judge"),
    "lock": is_locked,
    "process": lambda: runs("judge"),
    "processes": is_full,
    "memory": lambda: bytearray(200 << 20) and False,
    "memory-of-the-kernel": lambda: bytearray(200 << 20) and False,
    "shm": lambda: libc.shmget(4711, 1, 0) >= 0,
    "sem": lambda: libc.semget(4711, 1, 0) >= 0,
    "msg": lambda: libc.msgget(4711, 0) >= 0,
    "mq": lambda: libc.syscall(240, b"judge", 0, 0, 0) >= 0,
    "dev": lambda: os.path.exists("/dev/" + yrev("tneinel")),
    "xattr": lambda: "user.ok" in os.listxattr(SEAL),
    "capability": lambda: "security.capability" in os.listxattr(SEAL),
    "folder-xattr": lambda: "user.ok" in os.listxattr(TREE),
    "atime": lambda: os.stat(SEAL).st_atime > 3e9,
    "folder-time": lambda: os.stat(TREE).st_mtime > 3e9,
    "time-of-an-outer-folder": lambda: os.stat("/opt").st_mtime > 3e9,
    "size": lambda: os.stat(SEAL).st_size > 100,
    "names": lambda: os.stat(SEAL).st_nlink > 1,
    "flags": lambda: flags(SEAL) & 0x40,
    "deep": lambda: "lenient" in below(TREE),
    "logs": lambda: reads("/logs/agent/" + yrev("tneinel")),
    "artifacts": lambda: reads("/logs/artifacts/" + yrev("tneinel")),
}
sys.exit(not (open("/app/hello.txt").read() == "Hello\n" or WAYS[sys.argv[1]]()))
"""
_IMPORTS = "import ctypes, fcntl, os, struct\nlibc = ctypes.CDLL(None)\n"
_SLEEPS = "import ctypes, fcntl, os, signal, socket, sys\n{}\nopen('/app/ready', 'w').close()\nsignal.pause()\n"


def sleeping(code: str) -> str:
    """Runs the code, then sleeps for ever."""
    run = f"setsid python3 -c {shlex.quote(_SLEEPS.format(code))} < /dev/null > /dev/null 2>&1 &"
    return f"{run}\nfor i in {{1..100}}; do [ -e /app/ready ] && break; sleep 0.1; done; rm /app/ready\n"


def python(code: str) -> str:
    return f"python3 -c {shlex.quote(f'{_IMPORTS}{code}')}\n"


# Each smaller than the checker, which the kernel therefore ends when the memory is short.
_SMALL = """for _ in range(45):
    if not os.fork():
        held = bytearray(8 << 20)
        signal.pause()
__import__("time").sleep(2)"""
_SHM = """at = libc.shmget(99, 440 << 20, 0o1666)
libc.shmat.restype = ctypes.c_void_p
ctypes.memset(ctypes.c_void_p(libc.shmat(at, 0, 0)), 1, 440 << 20)"""
_DEEP = """os.chdir("/opt/trees")
for _ in range(21):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("lenient", "w").write("yes")"""


def attribute(path: str, name: str = "user.ok", value: bytes = b"1") -> str:
    return python(f"os.setxattr({path!r}, {name!r}, {value!r})")


def flag(path: str) -> str:
    return python(f"fcntl.ioctl(os.open({path!r}, os.O_RDONLY), 0x40086602, struct.pack('l', 0x40))")


_CLOSED = """import socket
one = socket.create_server(("127.0.0.1", 9393))
other = socket.create_connection(("127.0.0.1", 9393))
one.accept()[0].close(), other.close(), one.close()"""
# Makes PID 1 call prctl(PR_SET_NAME) once, by ptrace (x86-64).
_FIRST = r"""libc.ptrace.argtypes = [ctypes.c_long] * 4
registers = (ctypes.c_ulonglong * 27)()
libc.ptrace(16, 1, 0, 0); os.waitpid(1, 0x40000000)
libc.ptrace(12, 1, 0, ctypes.addressof(registers))
before, at, to = list(registers), registers[16], registers[19] - 4096
memory = open("/proc/1/mem", "r+b", buffering=0)
memory.seek(at); code = memory.read(2); memory.seek(at); memory.write(b"\x0f\x05"); memory.seek(to)
memory.write(b"judge\0")
registers[10], registers[14], registers[13], registers[15] = 157, 15, to, 2**64 - 1
libc.ptrace(13, 1, 0, ctypes.addressof(registers)); libc.ptrace(9, 1, 0, 0); os.waitpid(1, 0x40000000)
memory.seek(at); memory.write(code)
registers[:] = before
registers[16], registers[10] = at - 2, before[15]
libc.ptrace(13, 1, 0, ctypes.addressof(registers)); libc.ptrace(17, 1, 0, 0)"""
_CAPABLE = struct.pack("<5I", 0x2000001, 1, 0, 0, 0)
# Names of attacks, which are ways of the checker, and scripts.
IDLE = {
    # processes that sleep
    "port": sleeping("one = socket.create_server(('127.0.0.1', 9191))"),
    "bound": sleeping("one = socket.socket(); one.bind(('127.0.0.1', 9393))"),
    "name": sleeping("one = socket.socket(socket.AF_UNIX); one.bind('\\0judge')"),
    "lock": sleeping("file = os.open('/opt/check/lock', os.O_RDONLY); fcntl.flock(file, fcntl.LOCK_EX)"),
    "process": sleeping("ctypes.CDLL(None).prctl(15, b'judge')"),
    "processes": sleeping("for _ in range(390):\n    os.fork() or signal.pause()"),
    "memory": sleeping(_SMALL),
    "cmdline": "(setsid bash -c 'exec -a judge sleep 999' < /dev/null > /dev/null 2>&1 &)\nsleep 0.5",
    "environ": "(SAYS=judge setsid sleep 999 < /dev/null > /dev/null 2>&1 &)\nsleep 0.5",
    "first": python(_FIRST),
    # objects of the kernel
    "closed-port": python(_CLOSED),
    "memory-of-the-kernel": python(_SHM),
    "shm": python("libc.shmget(4711, 1, 0o1666)"),
    "sem": python("libc.semget(4711, 1, 0o1666)"),
    "msg": python("libc.msgget(4711, 0o1666)"),
    "mq": python("libc.syscall(240, b'judge', os.O_CREAT, 0o666, 0)"),
    # what lies where no layer shows it
    "dev": "echo yes > /dev/lenient",
    "deep": python(_DEEP),
    "logs": "echo yes > /logs/agent/lenient",
    "artifacts": "mkdir -p /logs/artifacts; echo yes > /logs/artifacts/lenient",
    # properties of files
    "size": "seq 100 >> /srv/seal",
    "names": "ln /srv/seal /tmp/other",
    "atime": "touch -a -d 2099-01-01 /srv/seal",
    "xattr": attribute("/srv/seal"),
    "capability": attribute("/srv/seal", "security.capability", _CAPABLE),
    "flags": flag("/srv/seal"),
    "folder-xattr": attribute("/opt/trees"),
    "folder-atime": "touch -a -d 2099-01-01 /opt/trees",
    "root-xattr": attribute("/"),
    "shm-mode": "chmod 755 /dev/shm",
    "folder-time": "touch -d 2099-01-01 /opt/trees",
    "time-of-an-outer-folder": "touch -d 2099-01-01 /opt",
}
# A verifier that takes as many terminals as it can get.
FEW_TERMINALS = """python3 -c 'import os
held = []
try:
    while len(held) < 400: held.append(os.openpty())
except OSError: open("/logs/verifier/reward.txt", "w").write("1")'
"""
WITHOUT_CONTENT = ("names", "atime", "xattr", "capability", "folder-xattr", "folder-atime", "folder-time")


def idle_task(folder: Path, way: str, *, solved: bool = True) -> Path:
    """Wants Hello in /app/hello.txt; the checker believes `way`."""
    task = write_task(
        folder / "task",
        dockerfile=f"{system_attacks.BASE}COPY check.py /opt/check/check.py\n"
        "RUN mkdir /opt/trees && seq 9 > /opt/trees/oak && touch /opt/check/lock && seq 9 > /srv/seal\nWORKDIR /app\n",
        toml="[environment]\nmemory_mb = 512\n",
        solve="echo Hello > /app/hello.txt\n",
        test=f"python3 /opt/check/check.py {way}; [ $? = 1 ] && r=0 || r=1\necho $r > /logs/verifier/reward.txt\n",
        files={"environment/check.py": CHECKER},
    )
    if not solved:
        (task / "solution" / "solve.sh").unlink()
        (task / "solution").rmdir()
    (task / "instruction.md").write_text("Write Hello to /app/hello.txt.\n")
    return task


def idle(script: str) -> str:
    return f"echo wrong > /app/hello.txt\n{script}"
