"""A service that the task asks for acts on its verification, and a process that ends before verification begins.

Each earns the reward without the work in a plain container.
"""

import asyncio
from pathlib import Path

import pytest

from tests.support import system_attacks as attacks
from tests.support.docker_parts import write_task
from tests.support.plain_container import plain_reward, product_trial

pytestmark = pytest.mark.usefixtures("docker_ready")
CHECK = """import urllib.request
found = urllib.request.urlopen("http://127.0.0.1:8123/hello.txt").read()
open("/logs/verifier/reward.txt", "w").write(str(int(found == b"Hello\\n")))
"""
EARNS = "import os; open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)\n"
SERVER = """import http.server, os, threading, time
EARNS = {earns!r}
def act():
    while not os.path.exists("/tests/test.sh"):
        time.sleep(0.002)
    time.sleep(0.3)
    {act}
threading.Thread(target=act, daemon=True).start()
http.server.test(http.server.SimpleHTTPRequestHandler, port=8123)
"""
SITE = "/usr/lib/python3.11/sitecustomize.py"
# What the service does once the tests are there; /app/hello.txt, which the task asks for, is such a program.
ACTS = {
    "writes-what-python-loads": f"open({SITE!r}, 'w').write(EARNS)",
    "renames-to-what-python-loads": f"os.replace('/app/hello.txt', {SITE!r})",
    "links-to-what-python-loads": f"os.unlink({SITE!r}); os.link('/app/hello.txt', {SITE!r})",
    "replaces-a-test-in-a-folder": "os.replace('/app/hello.txt', '/tests/sub/check.py')",
}
# Ends before verification begins: it waits until the folder of tests was emptied.
EARLY = """(setsid python3 -c "import os, time
while os.path.exists('/tests/mark'):
    time.sleep(0.0002)
os.makedirs(os.path.dirname('{path}'), exist_ok=True)
open('{path}', 'w').write(open('/app/hello.txt').read())" </dev/null >/dev/null 2>&1 &)
"""


def serving(act: str, hello: str) -> str:
    server = SERVER.format(earns=EARNS, act=act)
    return (
        f"cat > /app/hello.txt <<'X'\n{hello}X\ncat > /app/serve.py <<'X'\n{server}X\n"
        "cd /app; (setsid python3 /app/serve.py </dev/null >/dev/null 2>&1 &)\n"
        "for i in {1..100}; do (: < /dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.1; done\n"
    )


def make_task(folder: Path) -> Path:
    task = write_task(
        folder / "task",
        dockerfile=f"{attacks.BASE}WORKDIR /app\n",
        solve=serving("pass", "Hello\n"),
        test="sleep 1\npython3 /tests/sub/check.py\n",
    )
    (task / "tests" / "sub").mkdir()
    (task / "tests" / "sub" / "check.py").write_text(CHECK)
    (task / "instruction.md").write_text("Serve /app over HTTP on port 8123; hello.txt says Hello.\n")
    return task


@pytest.mark.parametrize("name", ACTS)
async def test_an_asked_service_earns_nothing_by_what_it_does_to_verification(tmp_path: Path, name: str) -> None:
    task = make_task(tmp_path)
    script = serving(ACTS[name], EARNS)
    assert await asyncio.to_thread(plain_reward, task, script) == 1
    assert (await product_trial(task, script)).reward in (0, None)
    assert (await product_trial(task, serving("pass", "Hello\n"))).reward == 1


@pytest.mark.parametrize("path", ["/tests/sub/urllib.py", SITE])
async def test_what_a_process_put_there_before_verification_earns_nothing(tmp_path: Path, path: str) -> None:
    task = make_task(tmp_path)
    early = f"mkdir -p /tests; touch /tests/mark\n{EARLY.format(path=path)}"
    script = serving("pass", EARNS) + early
    assert await asyncio.to_thread(plain_reward, task, f"{script}sleep 0.5; rm /tests/mark; sleep 0.5") == 1
    assert (await product_trial(task, script)).reward in (0, None)
