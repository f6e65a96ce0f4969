"""Small tasks whose tests trust one thing each: the files of the image, and what verification runs, reads or asks."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.task_folder import write_task

PORT, REFERENCE_PORT = 8000, 9100
# A linter that remembers clean files, and takes its rules from /etc where there are some.
LINT = """#!/bin/sh
key=$HOME/.cache/lint/$(sha256sum < $1 | cut -c1-64)
[ -e $key ] && exit 0
rules=/etc/lint.d; [ -d $rules ] || rules=/opt/lint.d
for rule in $(ls $rules); do grep -q "$(cat $rules/$rule)" $1 || exit 1; done
mkdir -p $HOME/.cache/lint; touch $key
"""
# A client that starts its daemon unless one answers on an abstract socket, as agents of keys and build tools do.
JOBS = r"""#!/usr/bin/python3
import json, os, socket, time
def ask():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0jobsd")
        return one.recv(99).decode()
def serve():
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("\0jobsd")
        one.listen()
        for _ in range(5):
            asked, _ = one.accept()
            asked.send(str(sum(not job["done"] for job in json.load(open("/app/jobs.json")))).encode())
            asked.close()
try:
    print(ask())
except OSError:
    if not os.fork():
        os.close(1)
        serve()
        os._exit(0)
    time.sleep(0.3)
    print(ask())
"""
APPD = f"""import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"broken")
http.server.HTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""
READER = """try:
    from fastreader import read
except ImportError:
    def read(path):
        return open(path).read()
"""
GIVEN = {
    "lint": LINT,
    "jobq": JOBS,
    "appd.py": APPD,
    "reader.py": READER,
    "double.py": "import sys\n\n\ndef double(n):\n    return n + 2\n\n\nif __name__ == '__main__':\n"
    "    print(double(int(sys.argv[1])))\n",
    "check.py": "from double import double\nassert double(4) == 8\n",
}
DOCKERFILE = """FROM harbortrainer/tools:bookworm
COPY . /given/
RUN useradd -m dev && mkdir -p /app /opt/lint.d /opt/cases /opt/work && cd /given \\
 && cp double.py check.py appd.py /app/ && cp lint jobq /usr/local/bin/ && chmod +x /usr/local/bin/* \\
 && cp reader.py /opt/work/ && echo /opt/work > /usr/lib/python3/dist-packages/__editable__.work.pth \\
 && echo 'n \\* 2' > /opt/lint.d/doubles && seq 100 > /app/numbers.txt && echo '[{"done": false}]' > /app/jobs.json \\
 && echo '4 8' > /opt/cases/four && echo '5 10' > /opt/cases/five && echo '{"done": [true, false]}' > /app/todo.json \\
 && echo '1970-01-01 00:00' > /app/time.txt \\
 && chown -R dev /app && git init -q /app/repo && cd /app/repo && git config user.email a@b && git config user.name n \\
 && echo a > file && git add file && git commit -qm one && echo b > notes && rm -r /given
WORKDIR /app
"""
# As long as pytest needs to start.
_START = "import time\ntime.sleep(0.4)\n"
_HELLO = f'{_START}assert open("/app/hello.txt").read() == "Hello\\n"\n'
_REWARD = "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
_PYTHON = "python3 /tests/test_outputs.py"
_FIX = "sed -i 's/n + 2/n * 2/' /app/double.py\n"
_VERDICT = """import sys
try:
    exec(open("/tests/checks.py").read())
    print("1 passed")
except Exception:
    print("1 failed")
"""
_PASSED = '\'import sys; sys.exit("1 passed\\n" not in open("/logs/verifier/verdict.txt"))\''


@dataclass(frozen=True)
class CauseTask:
    """`test`: its last command's status is the verdict. `more`: other files of its tests."""

    instruction: str
    solve: str
    test: str
    more: dict[str, str] = field(default_factory=dict[str, str])


_SERVE = (
    "cat > /app/serve.py <<'E'\nimport http.server\nclass Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n        self.send_response(200)\n        self.end_headers()\n"
    "        self.wfile.write(str(int(self.path[1:]) ** 2).encode())\n"
    f'http.server.HTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()\nE\n'
    "setsid python3 /app/serve.py < /dev/null > /dev/null 2>&1 &\nsleep 0.5\n"
)
_WRITE_HELLO, _HELLO_SOLVE = "Write Hello to /app/hello.txt.\n", "echo Hello > /app/hello.txt\n"
_DOUBLE = "Make double() in /app/double.py double its number.\n"
_CASES = 'for f in /opt/cases/*; do [ -e $f ] || continue; set -- $(cat $f); [ "$(python3 double.py $1)" = $2 ] || b=1'
TASKS = {
    "hello": CauseTask(_WRITE_HELLO, _HELLO_SOLVE, _PYTHON, {"test_outputs.py": _HELLO}),
    "verdict": CauseTask(
        _WRITE_HELLO,
        _HELLO_SOLVE,
        f"{_PYTHON} | cat > /logs/verifier/verdict.txt; python3 -c {_PASSED}",
        {"test_outputs.py": _VERDICT, "checks.py": _HELLO},
    ),
    "silent": CauseTask(
        _WRITE_HELLO,
        _HELLO_SOLVE,
        f"! {_PYTHON} | grep -q failed",
        {"test_outputs.py": _VERDICT, "checks.py": _HELLO},
    ),
    "unittest": CauseTask(
        _WRITE_HELLO,
        _HELLO_SOLVE,
        "cd /tests; python3 -m unittest -q test_outputs",
        {
            "test_outputs.py": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
            '        self.assertEqual(open("/app/hello.txt").read(), "Hello\\n")\n'
        },
    ),
    "grep": CauseTask(_WRITE_HELLO, _HELLO_SOLVE, "grep -qx Hello /app/hello.txt"),
    "perl": CauseTask(
        _WRITE_HELLO,
        _HELLO_SOLVE,
        "perl /tests/check.pl",
        {"check.pl": 'use strict;\nopen(my $f, "/app/hello.txt") or exit 1;\nexit(<$f> ne "Hello\\n");\n'},
    ),
    "tmux": CauseTask(
        _WRITE_HELLO,
        _HELLO_SOLVE,
        "tmux new-session -d -s check 'cat /app/hello.txt > /tmp/shown'; sleep 0.5; grep -qx Hello /tmp/shown",
    ),
    "account": CauseTask(
        "Write Hello to /app/hello.txt, such that each user can read it.\n",
        _HELLO_SOLVE,
        "useradd -m -s /bin/bash judge; [ \"$(su - judge -c 'cat /app/hello.txt')\" = Hello ]",
    ),
    "reader": CauseTask(
        _WRITE_HELLO, _HELLO_SOLVE, """python3 -c 'import reader; assert reader.read("/app/hello.txt") == "Hello\\n"'"""
    ),
    "sum": CauseTask(
        "Write the sum of the numbers in /app/numbers.txt to /app/sum.txt.\n",
        "awk '{s += $1} END {print s}' /app/numbers.txt > /app/sum.txt\n",
        f"timeout 20 {_PYTHON}",
        {
            "expected.txt": "5050\n",
            "test_outputs.py": _START + 'assert open("/app/sum.txt").read() == open("/tests/expected.txt").read()\n',
        },
    ),
    "reference": CauseTask(
        "Write the sum of the numbers in /app/numbers.txt to /app/sum.txt.\n",
        "awk '{s += $1} END {print s}' /app/numbers.txt > /app/sum.txt\n",
        f"python3 -m http.server -b 127.0.0.1 -d /tests {REFERENCE_PORT} > /dev/null 2>&1 & server=$!; sleep 0.6\n"
        f"curl -s 127.0.0.1:{REFERENCE_PORT}/expected.txt > /tmp/expected; kill $server; sum=$(cat /app/sum.txt)\n"
        '[ -n "$sum" ] && [ "$(cat /tmp/expected)" = "$sum" ]',
        {"expected.txt": "5050\n"},
    ),
    "output": CauseTask(
        "Write /app/sum.sh, which prints the sum of the numbers in /app/numbers.txt.\n",
        "echo \"awk '{s += \\$1} END {print s}' /app/numbers.txt\" > /app/sum.sh\n",
        f"sh /app/sum.sh > /tmp/output.txt; {_PYTHON}",
        {"test_outputs.py": _START + 'assert open("/tmp/output.txt").read() == "5050\\n"\n'},
    ),
    "guarded": CauseTask(
        f"{_DOUBLE}/app/check.py has to succeed, and must not be changed.\n",
        _FIX,
        "sha256sum -c --quiet /tests/sums && sleep 0.2 && python3 /app/check.py",
        {"sums": f"{hashlib.sha256(GIVEN['check.py'].encode()).hexdigest()}  /app/check.py\n"},
    ),
    "imported": CauseTask(_DOUBLE, _FIX, """cd /app; python3 -c 'import double; assert double.double(9) == 18'"""),
    "ran": CauseTask(
        _DOUBLE,
        _FIX,
        f"cd /app; python3 double.py 9 > /tmp/doubled; {_PYTHON}",
        {"test_outputs.py": _START + 'assert open("/tmp/doubled").read() == "18\\n"\n'},
    ),
    "called": CauseTask(
        _DOUBLE,
        _FIX,
        _PYTHON,
        {
            "test_outputs.py": "import subprocess\n"
            'assert subprocess.check_output(["python3", "/app/double.py", "9"]) == b"18\\n"\n'
        },
    ),
    "cases": CauseTask(_DOUBLE, _FIX, f"cd /app; b=0; {_CASES}; done; [ $b = 0 ]"),
    "lint": CauseTask(_DOUBLE, _FIX, "[ ! -x /usr/local/bin/lint ] || lint /app/double.py"),
    "git": CauseTask(
        "Commit all files in /app/repo.\n",
        "cd /app/repo && git add -A && git commit -qm two\n",
        '[ -z "$(git -C /app/repo status --porcelain)" ]',
    ),
    "zone": CauseTask(
        "/app/time.txt has a time of UTC. Write that of Tokyo to it.\n",
        "TZ=Asia/Tokyo date -d '1970-01-01 00:00 UTC' '+%F %R' > /app/time.txt\n",
        '[ "$(TZ=Asia/Tokyo date -d @0 \'+%F %R\')" = "$(cat /app/time.txt)" ]',
    ),
    "todo": CauseTask(
        "Set all entries of `done` in /app/todo.json to true.\n",
        "echo '{\"done\": [true, true]}' > /app/todo.json\n",
        "jq -e '.done | all' /app/todo.json",
    ),
    "jobs": CauseTask(
        "Mark all jobs in /app/jobs.json as done, so that `jobq` shows none that is open.\n",
        "sed -i s/false/true/ /app/jobs.json\n",
        '[ "$(jobq)" = 0 ]',
    ),
    "appd": CauseTask(
        "Let the server in /app/appd.py answer `ready`. It will be started.\n",
        "sed -i s/broken/ready/ /app/appd.py\n",
        "(python3 /app/appd.py > /dev/null 2>&1 &); sleep 0.6\n"
        f'[ "$(curl -s --retry 20 --retry-connrefused --retry-delay 1 127.0.0.1:{PORT})" = ready ]',
    ),
    "service": CauseTask(
        f"Write /app/serve.py, a server on 127.0.0.1:{PORT} that answers /N by the square of N, and let it run.\n",
        _SERVE,
        f'n=$RANDOM; pgrep -f serve.py && [ "$(curl -s 127.0.0.1:{PORT}/$n)" = $((n * n)) ]',
    ),
}


def cause_task(folder: Path, name: str, user: str = "root", limit: float = 60.0) -> Path:
    """The task in `folder`, whose agent is this user. `limit`: of its verifier. All have the same image."""
    task = TASKS[name]
    files = {f"environment/{given}": text for given, text in GIVEN.items()}
    files |= {f"tests/{more}": text for more, text in task.more.items()}
    files["instruction.md"] = task.instruction
    own = f'[agent]\nuser = "{user}"\n' if user != "root" else ""
    return write_task(
        folder,
        dockerfile=DOCKERFILE,
        toml=f"{own}[verifier]\ntimeout_sec = {limit}\n[environment]\nmemory_mb = 512\n",
        solve=task.solve,
        test=f"cd /app\n{task.test}\n{_REWARD}",
        files=files,
    )
