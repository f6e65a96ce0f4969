"""What a trial and a terminal turn cost in our Docker environment and in Harbor's own, with an instant policy.

    python -m scripts.bench.docker_env [--turns 20] [--trials 8] [--parallel 1 8] [--only ours|stock]

Real Terminus-2, real containers; the model answers at once and every command asks for no waiting time, so what is
left is harness and Docker. "outside agent" is a trial's wall time less its agent phase, tear-down included.
"""

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial
from rich.console import Console
from rich.table import Table

from src.rollout.docker.engine import engine
from src.rollout.docker.images import prepare_images
from src.rollout.docker.reaper import reap
from src.rollout.docker.removal import drain
from src.rollout.environment import environment_config

IMAGE = "harbortrainer/base:bookworm"
RUN_ID = "bench"
_ANSWER = '{"analysis": "", "plan": "", "commands": [{"keystrokes": "echo hello\\n", "duration": 0.0}]}'


class InstantLLM(BaseLLM):
    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        return LLMResponse(content=_ANSWER)

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class InstantTerminus(Terminus2):
    def _init_llm(self, **kwargs: Any) -> BaseLLM:  # pyright: ignore[reportIncompatibleMethodOverride]
        return InstantLLM()


@dataclass
class Cost:
    """Of one variant at one level of parallelism: seconds, and CPU seconds of us, our children and the daemon."""

    wall: float = 0.0
    own: float = 0.0
    children: float = 0.0
    daemon: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="turns a trial")
    parser.add_argument("--trials", type=int, default=8, help="trials a measurement")
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 8], help="trials at once")
    parser.add_argument("--only", choices=["ours", "stock"], help="measure one variant")
    arguments = parser.parse_args()
    try:
        asyncio.run(_measure_all(arguments))
    finally:
        reap(RUN_ID)


async def _measure_all(arguments: argparse.Namespace) -> None:
    headings = ("", "parallel", "trials/s", "s/turn", "s outside agent", "CPU ms/turn: own", "CLI", "dockerd")
    table = Table(*headings, title="Docker environments")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        task = _write_task(Path(folder))
        await prepare_images([task])
        variants = [arguments.only] if arguments.only else ["ours", "stock"]
        await _run(task, "ours", 1, 1, Path(folder))  # imports and caches
        for parallel in arguments.parallel:
            for variant in variants:
                results, cost = await _measure(task, variant, parallel, arguments, Path(folder))
                table.add_row(variant, str(parallel), *_row(results, cost, arguments))
    Console(width=110).print(table)


async def _measure(
    task: Path, variant: str, parallel: int, arguments: argparse.Namespace, folder: Path
) -> tuple[list[TrialResult], Cost]:
    cost = Cost()
    limit = asyncio.Semaphore(parallel)

    async def trial() -> TrialResult:
        async with limit:
            return await _run(task, variant, arguments.turns, parallel, folder)

    with _metered(cost):
        results = await asyncio.gather(*(trial() for _ in range(max(arguments.trials, parallel))))
        await drain()
    return results, cost


async def _run(task: Path, variant: str, turns: int, parallel: int, folder: Path) -> TrialResult:
    stock = EnvironmentConfig(type=EnvironmentType.DOCKER)
    environment = stock if variant == "stock" else environment_config("docker", {}, task, RUN_ID)
    options = {"max_turns": turns, "enable_summarize": False, "record_terminal_session": False}
    agent = AgentConfig(import_path=f"{__spec__.name}:InstantTerminus", model_name="instant", kwargs=options)
    name = f"bench-{variant}-{parallel}-{time.monotonic_ns()}"
    trial = await Trial.create(
        TrialConfig(
            task=TaskConfig(path=task),
            trial_name=name,
            trials_dir=folder / "trials",
            agent=agent,
            environment=environment,
        )
    )
    result = await trial.run()
    if result.verifier_result is None:
        raise SystemExit(f"{variant}: {result.exception_info}")
    return result


def _row(results: list[TrialResult], cost: Cost, arguments: argparse.Namespace) -> Iterator[str]:
    n_turns = len(results) * arguments.turns
    yield f"{len(results) / cost.wall:.2f}"
    yield f"{statistics.median(_seconds(r.agent_execution) for r in results) / arguments.turns:.4f}"
    yield f"{statistics.median(_seconds(r) - _seconds(r.agent_execution) for r in results):.2f}"
    for cpu in (cost.own, cost.children, cost.daemon):
        yield f"{cpu / n_turns * 1000:.1f}"


def _seconds(timing: Any) -> float:
    return (timing.finished_at - timing.started_at).total_seconds()


@contextmanager
def _metered(cost: Cost) -> Iterator[None]:
    before = _clocks()
    yield
    cost.wall, cost.own, cost.children, cost.daemon = (now - then for now, then in zip(_clocks(), before, strict=True))


def _clocks() -> tuple[float, float, float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time(), children.ru_utime + children.ru_stime, _daemon_cpu()


def _daemon_cpu() -> float:
    """CPU seconds of dockerd and containerd, with what they waited for; 0 when they run elsewhere."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in ("dockerd", "containerd"):
            ticks += sum(int(field) for field in rest.split()[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _write_task(folder: Path) -> Path:
    engine().inspect_image(IMAGE)  # made by scripts/setup.sh
    task = folder / "bench-task"
    files = {
        "task.toml": 'schema_version = "1.4"\n[task]\nname = "bench/turns"\n[verifier]\ntimeout_sec = 60.0\n',
        "instruction.md": "Say hello.\n",
        "environment/Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\n",
        "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    }
    for name, text in files.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task


if __name__ == "__main__":
    main()
