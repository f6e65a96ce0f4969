"""What honest work earns: in a plain container that is verified as Harbor does, and in a trial of this package.

    python -m bench.grades TASKS_DIR [--scripts DIR] [--only GLOB ...] [--kinds oracle nop honest] [--parallel 2]
                           [--set NAME=JSON ...] [--json FILE]

Each task is tried with its solution, with nothing, and with each honest script (DIR/TASK.sh, DIR/TASK-*.sh). The reward
of a plain container is kept in TASKS_DIR.control.json, by the digests of task and script. Exits with 1 if any work that
earns in the plain container earns 0 in a trial.
"""

import argparse
import asyncio
import fnmatch
import hashlib
import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from harbor.models.trial.config import AgentConfig
from harbor.utils.env import resolve_env_vars

from bench import report
from harbortrainer.config import Config
from harbortrainer.docker.checks.host import DockerHost
from harbortrainer.docker.daemon import Daemon
from harbortrainer.docker.images.image import ImageError, task_image
from harbortrainer.docker.keeping import cleaning
from harbortrainer.harbor import quiet_harbor_log
from harbortrainer.qualify.arguments import ListArgs
from harbortrainer.qualify.commands import task_folders
from harbortrainer.qualify.trials import ORACLE, QualificationTrial, QualificationTrials
from harbortrainer.rollout.gates import Gates
from harbortrainer.tasks.folders import digest, read_settings

NOP, HONEST = "nop", "honest"
SECONDS = 900  # for a script, or a verification whose task has no limit
HEADINGS = ("task", "kind", "control", "product", "verdict", "why", "control s", "s")
_NUMBERS = ("reward", "seconds", "repeats", "output")  # fields of a trial that are no text about its outcome
_READ = "cd /logs/verifier; cat reward.json || cat reward.txt"


@dataclass(frozen=True)
class Work:
    task: Path
    kind: str
    script: str | None  # None = the task's solution

    def key(self) -> str:
        return f"{digest(self.task)} {hashlib.sha256((self.script or '').encode()).hexdigest()} {self.kind}"


class LongTrials(QualificationTrials):
    """Trials whose script may take as long as an agent."""

    async def work(self, work: Work) -> QualificationTrial:
        if work.script is None:
            return await self.oracle(work.task, repeats=0)
        options = {"script": work.script, "seconds": SECONDS}
        agent = AgentConfig(import_path="harbortrainer.qualify.trials:ScriptAgent", kwargs=options)
        return await self._run(work.task, agent, work.kind, repeats=0)


def main() -> None:
    arguments = _arguments()
    quiet_harbor_log()
    rows = asyncio.run(_run(arguments, _works(arguments)))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    verdicts = [row["verdict"] for row in rows]
    below = ", ".join(f"{verdicts.count(name)} {name}" for name in ("equal", "wrongly 0", "other"))
    wrong = [f"{row['task']} {row['kind']}" for row in rows if row["verdict"] == "wrongly 0"]
    table = [list(map(str, row.values())) for row in rows]
    report.publish("bench.grades", "grades", HEADINGS, table, None, f"{len(rows)} works: {below}", wrong)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("tasks_dir", type=Path)
    add("--scripts", type=Path, help="folder of honest scripts")
    add("--only", nargs="+", default=["*"], help="globs of task names")
    add("--kinds", nargs="+", choices=(ORACLE, NOP, HONEST), default=(ORACLE, NOP, HONEST))
    add("--parallel", type=int, default=2, help="containers at once")
    add("--set", nargs="+", default=[], metavar="NAME=JSON", help="environment_kwargs")
    add("--json", type=Path, help="a file for the rows")
    return parser.parse_args()


def _works(arguments: argparse.Namespace) -> list[Work]:
    """A script belongs to the longest name of a task that its own begins with."""
    tasks = {path.name: path for path in task_folders(ListArgs(dirs=(str(arguments.tasks_dir),)))}
    works = [Work(path, ORACLE, None) for path in tasks.values() if (path / "solution").is_dir()]
    works += [Work(path, NOP, "true") for path in tasks.values()]
    for script in sorted(arguments.scripts.glob("*.sh")) if arguments.scripts else ():
        owners = [name for name in tasks if script.stem == name or script.stem.startswith(f"{name}-")]
        if owner := max(owners, key=len, default=""):
            works.append(Work(tasks[owner], script.stem.replace(owner, HONEST, 1), script.read_text()))
    kept = [one for one in works if one.kind.partition("-")[0] in arguments.kinds]
    chosen = [one for one in kept if any(fnmatch.fnmatch(one.task.name, glob) for glob in arguments.only)]
    return sorted(chosen, key=lambda work: work.task.name)


async def _run(arguments: argparse.Namespace, works: Sequence[Work]) -> list[dict[str, Any]]:
    kwargs = {name: json.loads(value) for name, _, value in (one.partition("=") for one in arguments.set)}
    n, run_id = arguments.parallel, f"grades-{uuid.uuid4().hex[:8]}"
    config = Config(model_name="", tasks_dir="", n_parallel_envs=n, environment_kwargs=kwargs)
    kept = arguments.tasks_dir.resolve().with_suffix(".control.json")
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    at_once = asyncio.Semaphore(n)
    daemon = Daemon(config.outage_limit_sec, DockerHost().ping)

    async def graded(work: Work) -> dict[str, Any]:
        async with at_once:
            control = known.get(work.key()) or await _control(work)
            if control["reward"] is not None:
                known[work.key()] = control
                kept.write_text(json.dumps(known, indent=1))
            row = _row(work, control, await trials.work(work))
        print(*row.values(), sep="  ", flush=True)
        return row

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        trials = LongTrials(config, run_id, Path(folder), Gates.of(config), daemon)
        try:
            return await asyncio.gather(*map(graded, works))
        finally:
            daemon.close()
            await cleaning.drain()
            await asyncio.to_thread(cleaning.reap, run_id)


async def _control(work: Work) -> dict[str, Any]:
    """`reward` None: there is no such container, or verification wrote no reward."""
    settings, began, reward, why = read_settings(work.task), time.monotonic(), None, ""
    elsewhere = settings.get("verifier", {}).get("environment_mode") == "separate"
    if elsewhere or (work.task / "environment" / "docker-compose.yaml").exists() or (work.task / "steps").is_dir():
        return {"reward": None, "seconds": 0, "why": "no plain container of services, steps, or another verifier's"}
    try:
        image = await task_image(work.task / "environment", settings.get("environment", {}).get("docker_image"))
        reward = await _plain(work, image.reference, settings)
    except ImageError as error:
        why = " ".join(str(error).split())[-200:]
    return {"reward": reward, "seconds": round(time.monotonic() - began, 1), "why": why}


async def _plain(work: Work, image: str, settings: Mapping[str, Any]) -> float | None:
    """Harbor's order: start, agent, tests, verification. Nothing ends, nothing is put back."""
    name = f"bench-grades-{uuid.uuid4().hex[:12]}"
    room, verifier = settings.get("environment", {}), settings.get("verifier", {})
    cpus = min(room.get("cpus", 1), os.cpu_count() or 1)  # Docker refuses more than it has
    limits = ("--cpus", str(cpus), "--memory", f"{room.get('memory_mb', 2048)}m")
    await _docker("run", "-d", "--name", name, *limits, image, "sh", "-c", "sleep infinity")
    try:
        await _docker("exec", "-u", "0", name, "sh", "-c", "mkdir -p /logs/agent /logs/verifier; chmod 777 /logs/*")
        script, variables = work.script, {}
        if script is None:
            await _docker("cp", f"{work.task}/solution", f"{name}:/solution")
            script, variables = "bash /solution/solve.sh", settings.get("solution", {}).get("env", {})
        await _exec(name, script, SECONDS, settings.get("agent", {}).get("user"), variables)
        await _docker("cp", f"{work.task}/tests", f"{name}:/tests")
        limit = verifier.get("timeout_sec", SECONDS)
        await _exec(name, "bash /tests/test.sh", limit, verifier.get("user"), verifier.get("env", {}))
        found = json.loads(await _docker("exec", name, "sh", "-c", _READ))
        return found["reward"] if isinstance(found, dict) else found
    except ValueError:
        return None
    finally:
        await _docker("rm", "-f", name)


async def _exec(name: str, script: str, seconds: float, user: str | int | None, variables: Mapping[str, str]) -> None:
    """The output stays inside: an exec ends only when the last service that has it does."""
    given = [word for key, value in resolve_env_vars(dict(variables)).items() for word in ("-e", f"{key}={value}")]
    command = ("timeout", str(seconds), "sh", "-c", 'exec bash -c "$0" >/dev/null 2>&1 </dev/null', script)
    await _docker("exec", *(() if user is None else ("-u", str(user))), *given, name, *command)


async def _docker(*words: str) -> str:
    ended = await asyncio.to_thread(subprocess.run, ["docker", *words], capture_output=True, stdin=subprocess.DEVNULL)
    return ended.stdout.decode()


def _row(work: Work, control: Mapping[str, Any], trial: QualificationTrial) -> dict[str, Any]:
    words = [control["why"], *(getattr(trial, one.name) for one in fields(trial) if one.name not in _NUMBERS)]
    expected, earned, why = control["reward"], trial.reward, "; ".join(str(word) for word in words if word)
    equal = expected is not None and expected == earned
    verdict = "equal" if equal else "wrongly 0" if expected and earned == 0 else "other"
    seconds = control["seconds"], round(trial.seconds, 1)
    return dict(zip(HEADINGS, (work.task.name, work.kind, expected, earned, verdict, why, *seconds), strict=True))


if __name__ == "__main__":
    main()
