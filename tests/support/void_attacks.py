"""Tricks that would turn a certain reward of 0 into a fault: verification hangs, breaks, or takes the memory.

The task is `hello` of `cause_tasks.py`; none of these does its work, so that each has earned 0.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.cause_attacks import living

TASK, LIMIT_SEC = "hello", 20.0  # of the verifier
MOST_MB, MOST_LAG_SEC = 50.0, 0.1  # that a trial may take from the trainer
_SPARSE = "truncate -s 256M"  # far above MOST_MB; with 3 GB the daemon answers nobody for minutes


@dataclass(frozen=True)
class Void:
    """`living`: a process that goes on beside verification."""

    kind: str
    script: str
    living: bool = False
    user: str = "root"


def _python(code: str) -> str:
    return f"python3 - <<'E'\n{code}E\n"


def _deep(folder: str) -> str:
    """1,200 folders, whose path is longer than a call takes."""
    return _python(
        f'import os\nos.chdir("{folder}")\nfor _ in range(1200):\n    os.mkdir("d" * 20)\n    os.chdir("d" * 20)\n'
    )


def _toml(value: str) -> str:
    return f"python3 -c 'print(\"[tool.pytest.ini_options]\\nx = \" + {value})' > /app/pyproject.toml\n"


_BEGUN = '\npid = pid_of("bash", "/tests/test.sh")\n'
_AT_TESTS = '\nappears("/tests/test.sh")\n'
_MANY = 'import os\nfor n in range(100_000):\n    os.close(os.open(f"/logs/verifier/{n}", os.O_CREAT))\n'
_NO_SHELL = (
    'import os\nfor name in ("bash", "dash", "sh"):\n    os.rename(f"/usr/bin/{name}", f"/usr/bin/gone-{name}")\n'
)
_FALSE = "import shutil\nfor name in ('bash', 'dash'):\n    shutil.copy('/usr/bin/false', '/new')\n"
_FALSE += "    shutil.move('/new', f'/usr/bin/{name}')\n"
_FORKS = f"""{_AT_TESTS}
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    try:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
    except OSError:
        time.sleep(0.001)
"""
_ALL = f"{_AT_TESTS}while True:\n    libc.kill(-1, 9)\n    time.sleep(0.05)\n"
_EATS = f"{_AT_TESTS}held = [bytearray(10 << 20) for _ in range(40)]\ntime.sleep(60)\n"
_UNREADABLE = """
appears("/logs/verifier/reward.txt")
put("/logs/verifier/reward.txt", "none")
put("/logs/verifier/reward.json", "{")
"""
_FOLDER = f'{_AT_TESTS}os.makedirs("/logs/verifier/reward.json/x")\n'
TRICKS = {
    "work-is-a-pipe": Void("a named pipe", "mkfifo /app/hello.txt"),
    "work-is-a-pipe-as-dev": Void("a named pipe", "mkfifo /app/hello.txt", user="dev"),
    "work-is-endless": Void("a link to a device", "ln -s /dev/zero /app/hello.txt"),
    "work-is-sparse": Void("a sparse file", "truncate -s 3G /app/hello.txt"),
    "settings-are-sparse": Void("a sparse file", f"{_SPARSE} /app/setup.cfg"),
    "settings-are-a-pipe": Void("a named pipe", "mkfifo /app/pyproject.toml /app/setup.cfg /app/tox.ini"),
    "number-of-5000-digits": Void("a file that no parser takes", _toml('"9" * 5000')),
    "nested-3000-times": Void("a file that no parser takes", _toml('"[" * 3000 + "]" * 3000')),
    "nested-3000-times-as-dev": Void("a file that no parser takes", _toml('"[" * 3000 + "]" * 3000'), user="dev"),
    "deep-folders": Void("deep folders", _deep("/app")),
    "deep-folders-as-dev": Void("deep folders", _deep("/app"), user="dev"),
    "deep-folders-of-the-verifier": Void("deep folders", _deep("/logs/verifier")),
    "many-files-of-the-verifier": Void("many files", _python(_MANY)),
    "log-is-sparse": Void("a sparse log", f"{_SPARSE} /logs/agent/x"),
    "log-is-sparse-as-dev": Void("a sparse log", f"{_SPARSE} /logs/agent/x", user="dev"),
    "logs-without-a-mode": Void("closed folders", "chmod 000 /logs /logs/verifier"),
    "logs-by-a-link": Void("closed folders", "rm -rf /logs 2> /dev/null; ln -s /nowhere /logs || true"),
    "reward-is-a-folder": Void("a folder for a file", "mkdir -p /logs/verifier/reward.txt/x"),
    "reward-becomes-a-folder": Void("a folder for a file", living(_FOLDER), living=True),
    "reward-unreadable": Void("a reward that is none", living(_UNREADABLE), living=True),
    "no-shell": Void("no shell", _python(_NO_SHELL)),
    "shell-that-fails": Void("no shell", _python(_FALSE)),
    "memory-files-full": Void("full file systems", "dd if=/dev/zero of=/dev/shm/x bs=1M status=none 2> /dev/null || :"),
    "test-killed": Void("kills verification", living(f"{_BEGUN}os.kill(pid, 9)\n"), living=True),
    "all-killed": Void("kills verification", living(_ALL), living=True),
    "test-stopped": Void("stops verification", living(f"{_BEGUN}os.kill(pid, 19)\n"), living=True),
    "forks-at-verification": Void("takes all processes", living(_FORKS), living=True),
    "eats-memory-at-verification": Void("takes the memory", living(_EATS), living=True),
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
    """Of all that this process does within."""
    seen = Disturbed()

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            seen.lag_sec = max(seen.lag_sec, time.monotonic() - began - 0.01)

    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, beating = _resident("VmRSS"), asyncio.create_task(beat())
    try:
        yield seen
    finally:
        beating.cancel()
        seen.mb = _resident("VmHWM") - before
