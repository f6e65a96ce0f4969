"""Tricks that would turn a certain reward of 0 into a fault, or disturb the trainer and other trials.

Verification hangs, breaks, or meets what is too large to be read. The task is `hello` of `cause_tasks.py`; none of
these does its work, so that each has earned 0.
"""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.cause_attacks import living

TASK, LIMIT_SEC = "hello", 12.0  # of the verifier
MOST_MB, MOST_LAG_SEC = 50.0, 0.1  # that a trial may take from the trainer
_REWARD = "/logs/verifier/reward.txt"


@dataclass(frozen=True)
class Void:
    """`quick`: its trial takes a second or two."""

    kind: str
    script: str
    quick: bool = False
    user: str = "root"


def _python(code: str) -> str:
    return f"python3 - <<'E'\n{code}E\n"


def _files(number: int, folder: str) -> str:
    make = f'os.makedirs("{folder}", exist_ok=True)\nfor n in range({number}):\n'
    return _python(f'import os\n{make}    os.close(os.open(f"{folder}/{{n}}", os.O_CREAT))\n')


def _deep(folder: str, name: str = "d", depth: int = 5000) -> str:
    """Its path is longer than a call takes."""
    return _python(
        f'import os\nos.makedirs("{folder}", exist_ok=True)\nos.chdir("{folder}")\n'
        f'for _ in range({depth}):\n    os.mkdir("{name}")\n    os.chdir("{name}")\n'
    )


def _toml(value: str) -> str:
    return f"python3 -c 'print(\"[tool.pytest.ini_options]\\nx = \" + {value})' > /app/pyproject.toml\n"


def _replaced(code: str, *programs: str) -> str:
    """Python that puts a program in the place of others."""
    return f"""
for path in {programs}:
    with open(path + ".new", "w") as file:
        file.write({f"#!/usr/bin/python3{chr(10)}{code}"!r})
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)
"""


def _programs(code: str, *programs: str) -> str:
    return _python(f"import os\n{_replaced(code, *programs)}")


def _alone(before: str) -> str:
    """Does it, and kills everything else: no shell of before goes on."""
    kill = "end = time.monotonic() + 0.1\nwhile time.monotonic() < end:\n    libc.kill(-1, 9)\n"
    return living(f"{before}\n{kill}time.sleep(300)\n") + "sleep 1; true"


_AT_TESTS = '\nappears("/tests/test.sh")\n'
_BEGUN = '\npid = pid_of("bash", "/tests/test.sh")\n'


def _at_tests(code: str) -> str:
    return living(f"{_AT_TESTS}{code}\ntime.sleep(60)\n")


def _again(code: str) -> str:
    """Beside verification, without an end."""
    do = f"    with contextlib.suppress(OSError):\n        {code}\n    time.sleep(0.0005)\n"
    return living(f"{_AT_TESTS}import contextlib, itertools\nfor n in itertools.count():\n{do}")


_SHELLS = ("/usr/bin/bash", "/usr/bin/dash")
_SLEEPS, _FAILS = "import time\ntime.sleep(1e6)\n", "raise SystemExit(1)\n"
_PRINTS = "import os\nwhile True: os.write(1, b'a ' * 30_000)\n"
_PRINTS_AND_FAILS = "import os, sys\nfor _ in range(2000): os.write(2, b'a ' * 5000)\nsys.exit(1)\n"
_FORKS = """
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    try:
        if not os.fork():
            time.sleep(300)
            os._exit(0)
    except OSError:
        time.sleep(0.01)
"""
_HOGS = """
for _ in range(300):
    if not os.fork():
        held = os.urandom(1 << 20) * 2
        time.sleep(300)
"""
_BLAMED = """
if not os.fork():
    held = []
    while True: held.append(os.urandom(1 << 20))
mine = (1, os.getpid(), os.getpid() + 1)
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) not in mine: open(f"/proc/{pid}/oom_score_adj", "w").write("1000")
        except OSError: pass
"""
_LEASES = """
import fcntl, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
for n in range(100):
    open(f"/logs/agent/{n:03}", "w").write("x")
    fcntl.fcntl(os.open(f"/logs/agent/{n:03}", os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
time.sleep(300)
"""
_GROWS = """
with open("/logs/verifier/a", "ab") as file:
    while True:
        file.write(b"x" * 100_000)
        if file.tell() > 1 << 29: file.truncate(0)
"""
_COME_AND_GO = """
import contextlib, itertools
os.makedirs("/app/f")
[os.fork() for _ in range(3)]
for n in itertools.count():
    with contextlib.suppress(OSError): os.makedirs(f"/app/f/{os.getpid()}-{n % 300}/x")
    with contextlib.suppress(OSError): os.removedirs(f"/app/f/{os.getpid()}-{(n + 150) % 300}/x")
"""
_NAMES = """import os
for folder in (b"/app", b"/logs/agent", b"/logs/verifier"):
    for n in range(1000):
        os.close(os.open(folder + b"/" + (b"%04d\\n\\x1b[31m" % n).ljust(255, b"\\xff"), os.O_CREAT))
"""
_TIMES = "for d in /app /logs/agent /logs/verifier; do touch -d @9999999999999 $d/a; touch -d @-999999999 $d/b; done"
_SIGNALS = "for s in range(1, 32):\n    s in (9, 19) or libc.kill(1, s)\n"
_UNREADABLE = f'appears("{_REWARD}")\nput("{_REWARD}", "none")\nput("/logs/verifier/reward.json", "{{")\n'


def _rewards(text: str) -> str:
    return living(f'appears("{_REWARD}")\nput("/logs/verifier/reward.json", {text!r})\n')


_LARGE = 'open("/logs/verifier/s", "w").truncate({}); os.rename("/logs/verifier/s", "{}")'
TRICKS = {
    # the work
    "work-is-a-pipe": Void("a named pipe", "mkfifo /app/hello.txt"),
    "work-is-a-pipe-as-dev": Void("a named pipe", "mkfifo /app/hello.txt", user="dev"),
    "work-is-endless": Void("a link to a device", "ln -s /dev/zero /app/hello.txt", quick=True),
    "work-is-sparse": Void("a sparse file", "truncate -s 3G /app/hello.txt"),
    "work-is-many-files": Void("many files", _files(120_000, "/app/new")),
    "work-comes-and-goes": Void("a folder in motion", living(_COME_AND_GO)),
    "settings-are-sparse": Void("a sparse file", "truncate -s 800M /app/setup.cfg", quick=True),
    "settings-are-a-pipe": Void("a named pipe", "mkfifo /app/pyproject.toml /app/setup.cfg /app/tox.ini"),
    "number-of-5000-digits": Void("a file that no parser takes", _toml('"9" * 5000'), quick=True),
    "nested-3000-times": Void("a file that no parser takes", _toml('"[" * 3000 + "]" * 3000'), quick=True),
    "nested-as-dev": Void("a file that no parser takes", _toml('"[" * 3000 + "]" * 3000'), user="dev"),
    "deep-work": Void("deep folders", _deep("/app"), quick=True),
    "deep-work-long-names": Void("deep folders", _deep("/app", "d" * 20, 1200)),
    "deep-work-as-dev": Void("deep folders", _deep("/app"), user="dev"),
    "names-of-any-bytes": Void("names", _python(_NAMES)),
    "times-of-any-year": Void("times", _TIMES, quick=True),
    # the logs
    "log-is-sparse": Void("a sparse log", "truncate -s 3G /logs/agent/x", quick=True),
    "log-is-sparse-as-dev": Void("a sparse log", "truncate -s 3G /logs/agent/x", user="dev"),
    "log-fits-a-transfer": Void("a sparse log", "truncate -s 1900M /logs/agent/x", quick=True),
    "log-of-noise": Void("a large log", "head -c 200M /dev/urandom > /logs/agent/x"),
    "logs-are-sparse": Void("large logs", "for i in $(seq 100); do truncate -s 20M /logs/agent/$i; done", quick=True),
    "logs-are-many": Void("many files", _files(120_000, "/logs/agent")),
    "logs-are-leased": Void("files that an open waits for", living(_LEASES)),
    "logs-without-a-mode": Void("closed folders", "chmod 000 /logs /logs/verifier", quick=True),
    "logs-by-a-link": Void("closed folders", "rm -rf /logs 2> /dev/null; ln -s /nowhere /logs || true", quick=True),
    "deep-logs": Void("deep folders", _deep("/logs/agent")),
    "artifacts-are-sparse": Void("large logs", "mkdir -p /logs/artifacts; truncate -s 1900M /logs/artifacts/x"),
    "artifacts-are-many": Void("many files", _files(50_000, "/logs/artifacts")),
    # the verifier's folders
    "deep-tests": Void("deep folders", _deep("/tests")),
    "deep-folders-of-the-verifier": Void("deep folders", _deep("/logs/verifier")),
    "many-files-of-the-verifier": Void("many files", _files(50_000, "/logs/verifier")),
    "verifier-is-sparse": Void(
        "a sparse log", _at_tests('open("/logs/verifier/a", "w").truncate(1900 << 20)'), quick=True
    ),
    "verifier-grows": Void("a log in motion", _at_tests(_GROWS), quick=True),
    "verifier-is-renamed": Void("a folder in motion", _again('os.rename("/logs/verifier", f"/v{n}")')),
    "reward-is-a-folder": Void("a folder for a file", f"mkdir -p {_REWARD}/x", quick=True),
    "reward-becomes-a-folder": Void("a folder for a file", _at_tests('os.makedirs("/logs/verifier/reward.json/x")')),
    "reward-becomes-a-pipe": Void("a named pipe", _again('os.mkfifo("/logs/verifier/reward.json")')),
    "reward-becomes-endless": Void(
        "a link to a device", _again('os.symlink("/dev/zero", "/logs/verifier/reward.json")')
    ),
    "reward-becomes-large": Void("a large reward", _again(_LARGE.format(1 << 30, _REWARD)), quick=True),
    "reward-becomes-sparse": Void("a large reward", _again(_LARGE.format(3 << 30, "/logs/verifier/reward.json"))),
    "reward-unreadable": Void("a reward that is none", living(_UNREADABLE)),
    "rewards-of-other-names": Void("a reward that is none", _rewards('{"a": 1, "b": 2}'), quick=True),
    "no-rewards": Void("a reward that is none", _rewards("{}")),
    # programs and what they load
    "no-shell": Void("no shell", _python("import os\nfor n in ('bash', 'dash', 'sh'): os.unlink(f'/usr/bin/{n}')\n")),
    "shell-fails": Void("no shell", _programs(_FAILS, *_SHELLS), quick=True),
    "shell-sleeps": Void("no shell", _programs(_SLEEPS, *_SHELLS)),
    "shell-prints": Void("endless output", _programs(_PRINTS, *_SHELLS), quick=True),
    "shell-without-a-mode": Void("no shell", "chmod 000 /bin/sh /bin/dash /bin/bash", quick=True),
    "root-without-a-mode": Void("closed folders", "chmod 000 /", quick=True),
    "bash-sleeps-alone": Void("no shell", _alone(_replaced(_SLEEPS, "/usr/bin/bash"))),
    "shell-sleeps-alone": Void("no shell", _alone(_replaced(_SLEEPS, *_SHELLS))),
    "shell-prints-alone": Void("endless output", _alone(_replaced(_PRINTS, *_SHELLS))),
    "rm-prints": Void(
        "long output", _programs(_PRINTS_AND_FAILS, *(f"/usr/bin/{n}" for n in ("chmod", "mkdir", "rm"))), quick=True
    ),
    "rm-sleeps": Void("a program that hangs", "mkdir -p /tests/x\n" + _programs(_SLEEPS, "/usr/bin/rm")),
    "logs-moved-rm-sleeps": Void(
        "a program that hangs", f"mv /logs /l; ln -s /l /logs\n{_programs(_SLEEPS, '/usr/bin/rm')}"
    ),
    "preload-is-a-pipe": Void("a named pipe", "mkfifo /x.so; echo /x.so > /etc/ld.so.preload"),
    "preload-is-broken": Void("a broken library", "echo x > /x.so; echo /x.so > /etc/ld.so.preload", quick=True),
    "library-is-gone": Void(
        "a broken library", _python("import os,glob\nos.unlink(*glob.glob('/lib/*/libc.so.6'))\n"), quick=True
    ),
    "users-are-gone": Void("a broken list of users", _alone('os.unlink("/etc/passwd")'), quick=True),
    "users-are-a-pipe": Void("a named pipe", _alone('os.unlink("/etc/passwd")\nos.mkfifo("/etc/passwd")'), quick=True),
    "users-are-sparse": Void("a sparse file", _alone('open("/etc/group", "a").truncate(3 << 30)')),
    # processes and memory
    "memory-files-full": Void("full file systems", "dd if=/dev/zero of=/dev/shm/x bs=1M status=none 2> /dev/null || :"),
    "test-killed": Void("kills verification", living(f"{_BEGUN}os.kill(pid, 9)\n")),
    "test-stopped": Void("stops verification", living(f"{_BEGUN}os.kill(pid, 19)\n")),
    "all-killed": Void("kills verification", _at_tests("while True: libc.kill(-1, 9); time.sleep(0.05)")),
    "all-stopped": Void("stops verification", _at_tests("while True: libc.kill(-1, 19); time.sleep(0.01)")),
    "first-process-signalled": Void("kills verification", _at_tests(_SIGNALS)),
    "forks": Void("takes all processes", f"{living(_FORKS)}sleep 2"),
    "forks-at-verification": Void("takes all processes", _at_tests(_FORKS)),
    "hog": Void("takes the memory", _at_tests("held = [bytearray(10 << 20) for _ in range(40)]")),
    "hogs": Void("takes the memory", f"{living(_HOGS)}sleep 3"),
    "hog-that-blames": Void("takes the memory", _at_tests(_BLAMED)),
    "inotify-used-up": Void("limits of the machine", living("while libc.inotify_init() > 0: pass\ntime.sleep(300)\n")),
}


@dataclass
class Disturbed:
    """What the trainer's process lost: its memory's growth at the most, the longest pause of its event loop."""

    mb: float = 0.0
    lag_sec: float = 0.0


def _resident(name: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) / 1024


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Disturbed]:
    """Of all that this process does within. While other processes have the processor nobody is disturbed by it."""
    seen = Disturbed()
    queued = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def clock() -> float:
        """Seconds in which the loop's thread could run."""
        return time.monotonic() - int(queued.read_text().split()[1]) / 1e9

    async def beat() -> None:
        while True:
            began = clock()
            await asyncio.sleep(0.01)
            seen.lag_sec = max(seen.lag_sec, clock() - began - 0.01)

    gc.collect()
    gc.freeze()  # as a run does
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, beating = _resident("VmRSS"), asyncio.create_task(beat())
    try:
        yield seen
    finally:
        beating.cancel()
        gc.unfreeze()
        seen.mb = _resident("VmHWM") - before
