"""Three recipes that run programs of the policy, in containers without a network.

python -m scripts.cookbook.sandbox code_rl|harbor_rl|harbor_distillation [key=value ...]

code_rl asks SandboxFusion, an HTTP service whose image no registry gives us: `serving` answers its run_code. The two
of Harbor's tasks take a function that makes a sandbox, by default one of Modal, which needs an account:
`Container.create`. Runs in the recipes' environment; needs the docker command and images of scripts/setup.sh.
"""

# ruff: noqa: ASYNC109 (the cookbook's interface)
# pyright: reportMissingImports=false
import asyncio
import base64
import contextlib
import json
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import chz
from tinker_cookbook.recipes.distillation import on_policy_distillation_harbor_multi_turn as distilled
from tinker_cookbook.recipes.harbor_rl import harbor_env, train
from tinker_cookbook.sandbox import SandboxResult

TASKS = Path("tasks")  # of make_hub.py, where the recipes run
IMAGE = "harbortrainer/tools:bookworm"  # Python 3.11, as here
LIMITS = ("--network", "none", "--memory", "512m", "--pids-limit", "128")
PACKAGES = Path(sys.prefix) / "lib" / "python3.11" / "site-packages"  # numpy, which the recipe's test runner imports
SHOWN = 16_384  # bytes of an output


def run_code(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request of SandboxFusion's run_code, in a container of its own."""
    with tempfile.TemporaryDirectory(prefix="ht-code-") as folder:
        for name, text in request["files"].items():
            (Path(folder) / name).write_bytes(base64.b64decode(text))
        (Path(folder) / "main.py").write_text(request["code"])
        mounts = [f"{folder}:/code:ro", *(f"{PACKAGES / one}:/packages/{one}:ro" for one in ("numpy", "numpy.libs"))]
        flags = [flag for mount in mounts for flag in ("-v", mount)]
        limited = ("timeout", str(request["run_timeout"]), "python3", "main.py")
        command = ["docker", "run", "--rm", *LIMITS, *flags, "-e", "PYTHONPATH=/packages", "-w", "/code", IMAGE]
        done = subprocess.run([*command, *limited], capture_output=True, text=True, check=False)
    result = {"return_code": done.returncode, "stdout": done.stdout[-SHOWN:], "stderr": done.stderr[-SHOWN:]}
    return {"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result}


class _Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        answer = json.dumps(run_code(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """URL of run_code on 127.0.0.1, for the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/run_code"
    finally:
        server.shutdown()


async def docker(*arguments: str, given: bytes = b"", timeout: float = 600) -> SandboxResult:
    """One docker command, its outputs cut."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("docker", *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(given), timeout)
    except TimeoutError:
        process.kill()
        return SandboxResult(stdout="", stderr=f"no end within {timeout} s", exit_code=124)
    texts = [output[:SHOWN].decode(errors="replace") for output in (stdout, stderr)]
    return SandboxResult(stdout=texts[0], stderr=texts[1], exit_code=process.returncode or 0)


@dataclass(frozen=True)
class Container:
    """The cookbook's SandboxInterface."""

    sandbox_id: str

    @staticmethod
    async def create(environment: Path, timeout: int) -> "Container":
        """From a task's environment folder; ends by itself after `timeout` seconds."""
        built = await docker("build", "--quiet", str(environment))
        started = await docker("run", "-d", "--rm", "--init", *LIMITS, built.stdout.strip(), "sleep", str(timeout))
        if built.exit_code or started.exit_code:
            raise RuntimeError(f"no container of {environment}: {built.stderr or started.stderr}")
        return Container(started.stdout.strip())

    async def send_heartbeat(self, timeout: int = 30) -> None:
        pass

    async def run_command(
        self, command: str, workdir: str | None = None, timeout: int = 60, max_output_bytes: int | None = None
    ) -> SandboxResult:
        place = ("-w", workdir) if workdir else ()
        return await docker("exec", *place, self.sandbox_id, "bash", "-c", command, timeout=timeout)

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        return await docker("exec", self.sandbox_id, "cat", path, timeout=timeout)

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        data, name = content.encode() if isinstance(content, str) else content, shlex.quote(path)
        script = f"mkdir -p $(dirname {name}) && cat > {name}" + (f" && chmod +x {name}" if executable else "")
        return await docker("exec", "-i", self.sandbox_id, "bash", "-c", script, given=data, timeout=timeout)

    async def cleanup(self) -> None:
        await docker("rm", "-f", self.sandbox_id)


def tasks() -> list[harbor_env.HarborTask]:
    folders = sorted(TASKS.resolve().iterdir())
    return [harbor_env.HarborTask(one.name, (one / "instruction.md").read_text(), one) for one in folders]


def harbor_rl() -> None:
    """The recipe's main function, with tasks of ours."""
    asyncio.run(train.cli_main(chz.entrypoint(train.CLIConfig), tasks(), Container.create))


def harbor_distillation() -> None:
    config = chz.replace(chz.entrypoint(distilled.CLIConfig), sandbox_factory=Container.create)
    asyncio.run(distilled.cli_main(config, tasks()))


def code_rl() -> None:
    with serving() as url:
        os.environ["SANDBOX_URL"] = url
        runpy.run_module("tinker_cookbook.recipes.code_rl.train", run_name="__main__")


if __name__ == "__main__":
    {"harbor_rl": harbor_rl, "harbor_distillation": harbor_distillation, "code_rl": code_rl}[sys.argv.pop(1)]()
