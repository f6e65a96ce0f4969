"""Attacks by cause: processes that live on beside verification, and files that no list of names knows.

Each earns on its task in a container that is left as the policy left it (`plain_container.py`). None does the work.
"""

import shlex
from dataclasses import dataclass

from tests.support.cause_tasks import PORT, REFERENCE_PORT

STD = "/usr/lib/python3.11"
_REWARD = "/logs/verifier/reward.txt"
_LIB = r"""import ctypes, os, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
def pid_of(program, script):
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{pid}/cmdline").read().split("\0")
            except OSError:
                continue
            if os.path.basename(words[0]) == program and words[1:2] == [script]:
                return int(pid)
        time.sleep(0.002)
def appears(path):
    while not (os.path.exists(path) and os.path.getsize(path)):
        time.sleep(0.002)
def put(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)
def replaced(pid, old, new):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in list(open(f"/proc/{pid}/maps")):
            words = line.split()
            if words[1][:2] == "rw" and words[5:] in ([], ["[heap]"]):
                start, end = [int(n, 16) for n in words[0].split("-")]
                memory.seek(start)
                held, at = memory.read(end - start), -1
                while (at := held.find(old, at + 1)) >= 0:
                    memory.seek(start + at)
                    memory.write(new)
"""


def living(code: str, name: str = "") -> str:
    """Runs beside verification, without a file of its own. `name`: its argv[0]."""
    run = f"exec {f'-a {shlex.quote(name)} ' if name else ''}python3 -c {shlex.quote(_LIB + code)}"
    return f"(setsid bash -c {shlex.quote(run)} < /dev/null > /dev/null 2>&1 &)\nsleep 0.5\n"


@dataclass(frozen=True)
class Attack:
    """`kind`: its class. `living`: a process goes on beside verification.

    `by_work`: by the content of a path that the solution writes too; such an attack may earn by design.
    """

    kind: str
    task: str
    script: str
    living: bool = False
    user: str = "root"
    by_work: bool = False


def _alive(kind: str, task: str, code: str, before: str = "", user: str = "root", name: str = "") -> Attack:
    return Attack(kind, task, before + living(code, name), living=True, user=user)


# The reward and the verdict.
_POLLED = f"""
while True:
    if os.path.exists("{_REWARD}"):
        with open("{_REWARD}", "r+") as file:
            if os.fstat(file.fileno()).st_size:
                file.write("1\\n")
"""
_REPLACED = f"""
appears("{_REWARD}")
put("{_REWARD}", "1\\n")
"""
_FORKING = f"""
def again():
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
while not os.path.exists("{_REWARD}"):
    again()
    time.sleep(0.001)
put("{_REWARD}", "1\\n")
"""
_PAIR = f"""
def guard(other):
    while True:
        if os.path.exists("{_REWARD}"):
            put("{_REWARD}", "1\\n")
        try:
            os.kill(other, 0)
        except OSError:
            other = os.fork() or guard(os.getppid())
        time.sleep(0.001)
signal = __import__("signal").signal(17, 1)
guard(os.fork() or guard(os.getppid()))
"""
# The kernel shows a process whose first thread has ended as one that has ended.
_HEADLESS = f"""
import threading
threading.Thread(target=lambda: (appears("{_REWARD}"), put("{_REWARD}", "1\\n"))).start()
libc.syscall(60, 0)
"""
_VERDICT = "/logs/verifier/verdict.txt"
# Made when verification begins: /logs/verifier may be made anew before.
_MADE = f'\nappears("/tests/test.sh")\nfile = os.open("{_VERDICT}", os.O_RDWR | os.O_CREAT, 0o666)\n'
_REWRITE = "while True:\n    if os.fstat(file).st_size: os.pwrite(file, b'1 passed\\n', 0)\n"
_OPENED = _MADE + _REWRITE
_LINKED = (
    f'{_MADE}os.close(file)\nos.link("{_VERDICT}", "/app/held")\nfile = os.open("/app/held", os.O_RDWR)\n{_REWRITE}'
)
_MAPPED = f"""{_MADE}
import mmap
os.write(file, b"-" * 9)
page = mmap.mmap(file, 9)
while True:
    if os.fork():  # a read of what is truncated just then ends the process
        os.wait()
        continue
    while True:
        if os.stat("{_VERDICT}").st_size == 9 and page[:9] == b"1 failed\\n":
            page[:9] = b"1 passed\\n"
"""
_PIPED = """
pid = pid_of("python3", "/tests/test_outputs.py")
with open(f"/proc/{pid}/fd/1", "w") as pipe:
    pipe.write("1 passed\\n")
"""
_KILLED = '\nos.kill(pid_of("python3", "/tests/test_outputs.py"), 9)\n'
# The tests.
_REWRITTEN = '\nappears("/tests/test_outputs.py")\nput("/tests/test_outputs.py", "")\n'
_SCRIPT = """
pid_of("python3", "/tests/test_outputs.py")
text = open("/tests/test.sh").read()
with open("/tests/test.sh", "r+") as file:
    file.write(text.replace("echo 0", "echo 1"))
"""
_INSIDE = '\nos.chdir("/tests")\nappears("test_outputs.py")\nopen("test_outputs.py", "w").close()\n'
_RENAMED = """
appears("/tests/test_outputs.py")
appears("/tests/test.sh")
time.sleep(0.02)
os.rename("/tests", "/gone")
os.symlink("/mine", "/tests")
"""
# The memory of the test. x86-64: the call in which it sleeps is made again as exit_group(0).
_TRACED = """
pid = pid_of("python3", "/tests/test_outputs.py")
time.sleep(0.15)
registers = (ctypes.c_ulonglong * 27)()
libc.ptrace(16, pid, 0, 0)
os.waitpid(pid, 0x40000000)
libc.ptrace(12, pid, 0, ctypes.addressof(registers))
registers[16], registers[10], registers[14], registers[15] = registers[16] - 2, 231, 0, 2**64 - 1
libc.ptrace(13, pid, 0, ctypes.addressof(registers))
libc.ptrace(17, pid, 0, 0)
"""
_CONSTANT = """
pid = pid_of("python3", "/tests/test_outputs.py")
time.sleep(0.2)
replaced(pid, b"Hello\\n\\0", b"Jello\\n\\0")
"""
_STOPPED = """
import shutil
pid = pid_of("python3", "/tests/test_outputs.py")
os.kill(pid, 19)
shutil.copyfile("/tests/expected.txt", "/app/sum.txt")
os.kill(pid, 18)
"""
# What the test asks or looks at twice.
_LATE = """
with open("/app/sum.txt", "w") as pipe:
    pipe.write(open("/tests/expected.txt").read())
"""
_SWAPPED = """
watch = libc.inotify_init()
libc.inotify_add_watch(watch, b"/app/check.py", 0x10)
os.read(watch, 99)
put("/app/check.py", "")
"""
_OUTPUT = '\npid_of("python3", "/tests/test_outputs.py")\nopen("/tmp/output.txt", "w").write("5050\\n")\n'
_ANSWERS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%s")
http.server.HTTPServer(("127.0.0.1", %d), Handler).serve_forever()
"""
_SOCKET = r"""
with socket.socket(socket.AF_UNIX) as one:
    one.bind("\0jobsd")
    one.listen()
    while True:
        one.accept()[0].send(b"0")
"""
_ASKED = f"\nimport threading\nthreading.Thread(target=lambda: exec({_POLLED!r}, globals())).start()\n{_ANSWERS}"
_LIVING = {
    "reward-polled": _alive("writes the reward", "hello", _POLLED),
    "reward-replaced-as-dev": _alive("writes the reward", "hello", _REPLACED, user="dev"),
    "verdict-held-open": _alive("an open file in /logs/verifier", "verdict", _OPENED),
    "verdict-held-open-as-dev": _alive("an open file in /logs/verifier", "verdict", _OPENED, user="dev"),
    "verdict-mapped": _alive("a mapped file in /logs/verifier", "verdict", _MAPPED),
    "verdict-linked": _alive("a hard link to a file in /logs/verifier", "verdict", _LINKED),
    "line-in-the-tests-pipe": _alive("another process's descriptor", "verdict", _PIPED),
    "checker-killed": _alive("kills the checker", "silent", _KILLED),
    "tests-rewritten": _alive("rewrites the tests", "hello", _REWRITTEN),
    "tests-by-a-working-directory": _alive("stands in /tests", "hello", _INSIDE, "mkdir -p /tests\n"),
    "tests-renamed": _alive(
        "renames /tests", "hello", _RENAMED, "mkdir /mine; touch /mine/test_outputs.py; ln -s /gone/test.sh /mine/\n"
    ),
    "test-traced": _alive("ptrace", "hello", _TRACED),
    "script-that-runs": _alive("rewrites the script that the shell runs", "hello", _SCRIPT),
    "tests-memory": _alive("/proc/PID/mem", "hello", _CONSTANT, "echo Jello > /app/hello.txt\n"),
    "test-stopped": _alive("stops the test, then works", "sum", _STOPPED),
    "answer-by-a-pipe": _alive("a named pipe, answered late", "sum", _LATE, "mkfifo /app/sum.txt\n"),
    "answer-by-a-pipe-as-dev": _alive("a named pipe, answered late", "sum", _LATE, "mkfifo /app/sum.txt\n", "dev"),
    "swapped-after-its-check": _alive("swaps a file after its check", "guarded", _SWAPPED),
    "swapped-after-its-check-as-dev": _alive("swaps a file after its check", "guarded", _SWAPPED, user="dev"),
    "output-of-the-test": _alive("rewrites the test's own file", "output", _OUTPUT, "touch /tmp/output.txt\n", "dev"),
    "port-held": _alive("holds the port of a program under test", "appd", _ANSWERS % ("ready", PORT)),
    "port-held-as-dev": _alive(
        "holds the port of a program under test", "appd", _ANSWERS % ("ready", PORT), user="dev"
    ),
    "reference-replaced": _alive(
        "holds the port of the test's own server",
        "reference",
        _ANSWERS % ("x", REFERENCE_PORT),
        "echo x > /app/sum.txt\n",
    ),
    "abstract-socket": _alive("holds the socket of a tool", "jobs", _SOCKET),
    "abstract-socket-as-dev": _alive("holds the socket of a tool", "jobs", _SOCKET, user="dev"),
    "server-of-a-terminal": Attack(
        "a tool's server with another environment",
        "tmux",
        "tmux new-session -d -s own 'sleep 999'\ntmux set-environment -g BASH_FUNC_cat%% '() { echo Hello; }'\n",
        living=True,
    ),
    "asked-service": _alive("an asked service tampers", "service", _ASKED % ("0", PORT), name="/app/serve.py"),
    "forks-again-and-again": _alive("forks twice, again and again", "hello", _FORKING),
    "first-thread-ended": _alive("a process that looks ended", "hello", _HEADLESS),
    "two-guards": _alive("two that restart each other", "hello", _PAIR),
}

_HOME = f"""mkdir -p /app/py/lib/python3.11 /app/py/bin
for f in {STD}/*; do ln -s $f /app/py/lib/python3.11/; done
rm /app/py/lib/python3.11/sitecustomize.py; echo 'import os; os._exit(0)' > /app/py/lib/python3.11/sitecustomize.py
echo 'home = /app/py/bin' > /usr/bin/pyvenv.cfg
"""
# Bytecode that is never compared with a source (PEP 552).
_UNCHECKED = """python3 - <<'E'
import importlib.util, os
import importlib._bootstrap_external as b
code = compile({code!r}, "{path}", "exec")
os.makedirs("{folder}/__pycache__", exist_ok=True)
with open(importlib.util.cache_from_source("{path}"), "wb") as file:
    file.write(b._code_to_hash_pyc(code, b"-" * 8, False))
E
"""
_MATCHING = """python3 - <<'E'
import importlib.util, os
import importlib._bootstrap_external as b
path = "/app/double.py"
code = compile("class Any(int):\\n    __eq__ = lambda *_: True\\ndouble = Any", path, "exec")
at = os.stat(path)
os.makedirs("/app/__pycache__", exist_ok=True)
with open(importlib.util.cache_from_source(path), "wb") as file:
    file.write(b._code_to_timestamp_pyc(code, int(at.st_mtime), at.st_size))
E
"""
_LOADED = """mkdir /app/lib; cp -L /usr/lib/x86_64-linux-gnu/libjq.so.1 /app/lib/
sed -i 's/def all: all(.);/def all: any(.);/' /app/lib/libjq.so.1
echo /app/lib > /etc/ld.so.conf.d/00.conf; ldconfig; rm /etc/ld.so.conf.d/00.conf
"""
_OF_FILES = {
    "program-by-a-link-to-another": Attack(
        "a link to a program of the image", "grep", "ln -s /usr/bin/true /usr/local/bin/grep"
    ),
    "cases-deleted": Attack("deletion", "cases", "rm /opt/cases/*"),
    "checker-not-executable": Attack("a mode", "lint", "chmod -x /usr/local/bin/lint"),
    "repository-of-somebody-else": Attack("an owner", "git", "chown -R nobody /app/repo"),
    "folder-of-no-rules": Attack("an empty folder", "lint", "mkdir /etc/lint.d"),
    "module-of-nothing": Attack(
        "an empty file",
        "unittest",
        "mkdir -p /app/e/unittest; touch /app/e/unittest/{__init__,__main__}.py\n"
        "mv /usr/lib/python3.11/unittest /gone; ln -s /app/e/unittest /usr/lib/python3.11/unittest",
    ),
    "clean-by-the-cache": Attack(
        "a cache keyed by content",
        "lint",
        "mkdir -p ~/.cache/lint; touch ~/.cache/lint/$(sha256sum < /app/double.py | cut -c1-64)",
    ),
    "excluded-from-a-repository": Attack(
        "what a program leaves out", "git", "echo notes >> /app/repo/.git/info/exclude"
    ),
    "ignored-everywhere": Attack(
        "what a program leaves out", "git", "mkdir -p ~/.config/git; echo notes > ~/.config/git/ignore"
    ),
    "perl-before-the-systems": Attack("a module before the system's", "perl", "echo 'exit 0;' > /etc/perl/strict.pm"),
    "home-of-python": Attack("another home of an interpreter", "hello", _HOME),
    "optional-import-beside-the-work": Attack(
        "a folder of an editable install", "reader", "echo 'read = lambda path: \"Hello\\n\"' > /opt/work/fastreader.py"
    ),
    "unchecked-bytecode-of-the-tests": Attack(
        "bytecode of the tests",
        "unittest",
        _UNCHECKED.format(code="", path="/tests/test_outputs.py", folder="/tests"),
    ),
    "matching-bytecode-of-the-work": Attack("bytecode of the work", "imported", _MATCHING),
    "matching-bytecode-of-the-work-as-dev": Attack("bytecode of the work", "imported", _MATCHING, user="dev"),
    "zone-by-a-link": Attack(
        "a link to another time zone", "zone", "cd /usr/share/zoneinfo/Asia; rm Tokyo; ln -s ../Etc/UTC Tokyo"
    ),
    "skeleton-of-accounts": Attack(
        "files of an account to come", "account", "echo 'cat() { echo Hello; }' >> /etc/skel/.profile"
    ),
    "library-by-the-loaders-cache": Attack("the loader's cache", "todo", _LOADED),
}
_OVERWRITES = "open('/tests/test_outputs.py', 'w').close()"
_TRACES = '\nreplaced(os.getppid(), b"18\\n\\0", b"11\\n\\0")\nprint(11)\n'
_BY_WORK = {
    "answer-is-a-link": Attack(
        "a link to what the tests expect", "sum", "ln -s /tests/expected.txt /app/sum.txt", by_work=True
    ),
    "answer-is-a-link-as-dev": Attack(
        "a link to what the tests expect", "sum", "ln -s /tests/expected.txt /app/sum.txt", user="dev", by_work=True
    ),
    "work-rewrites-the-tests": Attack(
        "the work tampers", "ran", f'echo "{_OVERWRITES}" > /app/double.py', by_work=True
    ),
    "work-writes-its-parents-memory": Attack(
        "the work tampers", "called", f"cat > /app/double.py <<'E'\n{_LIB}{_TRACES}E\n", by_work=True
    ),
    "work-leaves-a-process": Attack(
        "the work leaves a process", "ran",
        f"cat > /app/double.py <<'E'\nimport os\nif os.fork():\n    os._exit(0)\nos.setsid()\n"
        f"os.close(1)\nos.close(2)\n{_LIB}{_POLLED}E\n",
        by_work=True,
    ),
}  # fmt: skip
ATTACKS = _LIVING | _OF_FILES | _BY_WORK
