"""A long run with faults: is its memory flat, is any trial lost or any step doubled?

    python -m bench.soak [--steps 1000] [--most-stale 2] [--seed 0] [--no-kills] [--trace] [--write]
    python -m bench.soak --real [--steps 200] [--most-stale 2] [--write]

With fakes: the whole program from session to journals in one process; server, environments and their times are made up.
Faults come at random: requests that fail once or for good, containers that go down, a server that is lost in an update,
a publishing or a save, kills, by cancelling the run anywhere and resuming it, and orderly stops.
--real: one process of `src.train` with a real server and real containers, without injected faults.
Memory is the resident set after each step; its slope is a least-squares line over the last four fifths of the steps.
--trace: the places that allocated most between a fifth of the steps and the end, by tracemalloc.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "0")

import numpy as np
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import ExceptionInfo

from bench import report
from bench.journal import audit
from bench.kills import AUDITED, server
from bench.off_policy import Quiet
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.keeping import ownership
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import ServerLost
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.policy.tinker_llm import live_llm
from harbortrainer.rollout.quarantine import Retries
from harbortrainer.run.directory import RunDirectory, run_ids
from harbortrainer.stopping import SIGNAL_STATUS, Stop
from harbortrainer.train import parse
from harbortrainer.training import outage
from harbortrainer.training.session import run_training
from harbortrainer.venues.harbor.venue import HarborVenue
from tests.support.recorded_run import Answer, FakeHost, FakeServer, FakeTrial, fake_outside
from tests.support.small_server import MODEL
from tests.support.task_folder import write_task

TASKS, BATCH, GROUP = 8, 2, 4
FAILS_ONCE, FAILS, GOES_DOWN, LOSES = 0.005, 0.01, 0.02, 0.01  # shares of requests, requests, trials, calls
CALLS = ("update", "publish", "save")  # in which the server may be lost
# KiB a step: below it memory counts as flat. The ledger keeps 5.5, and reading metrics.jsonl at an evaluation takes 12.
FLAT_KIB = 40.0
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024
HEADINGS = ("", "")


class Faults:
    """Draws faults and counts them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def comes(self, kind: str, share: float) -> bool:
        came = self.rng.random() < share
        self.seen[kind] += came
        return came


@dataclass(frozen=True, slots=True)
class Failing:
    """As a future of the SDK: a run that is killed need not wait for it."""

    error: Exception

    def __await__(self) -> Any:
        raise self.error
        yield  # a generator, as __await__ must be


@dataclass(frozen=True, slots=True)
class Later:
    """A future of the SDK that takes some milliseconds."""

    done: Answer[Any]

    def __await__(self) -> Any:
        yield from asyncio.sleep(0.005).__await__()
        return (yield from self.done.__await__())


class FaultyServer(FakeServer):
    """An update takes some milliseconds; a call may fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(Quiet())
        self._faults = faults

    def sample(self, *args: Any, **how: Any) -> Any:
        if self._faults.comes("requests failed once", FAILS_ONCE):
            return Failing(ConnectionError("connection reset"))
        if self._faults.comes("requests failed", FAILS):
            return Failing(ValueError("the engine refused the request"))
        return super().sample(*args, **how)

    def forward_backward(self, *args: Any, **how: Any) -> Any:
        return self._lost("update") or Later(super().forward_backward(*args, **how))

    def save_weights_for_sampler(self, name: str) -> Any:
        return self._lost("publish") or super().save_weights_for_sampler(name)

    def save_state(self, name: str) -> Any:
        return self._lost("save") or super().save_state(name)

    def _lost(self, call: str) -> Awaitable[Any] | None:
        lost = self._faults.comes(f"server lost in {call}", LOSES)
        return Failing(ConnectionError("connection refused")) if lost else None


class FaultyTrial(FakeTrial):
    """Two turns and a random time; its container may go down."""

    def __init__(self, config: TrialConfig, faults: Faults) -> None:
        super().__init__(config, Quiet())
        self._faults = faults

    async def _act(self) -> Any:
        llm = live_llm(self._config.agent.kwargs["llm_kwargs"]["name"])
        with contextlib.suppress(SamplingError):  # the LLM has it; Harbor records it
            first = await llm.call("the task")
            await asyncio.sleep(min(0.1, 0.005 * self._faults.rng.paretovariate(1.2)))
            history = [{"role": "user", "content": "the task"}, {"role": "assistant", "content": first.content}]
            await llm.call("the terminal", message_history=history)
        llm.stop_reason = "done"
        nothing = dict.fromkeys(("exception_info", "step_results", "environment_setup", "agent_setup", "verifier"))
        if self._faults.comes("containers down", GOES_DOWN):
            nothing["exception_info"] = ExceptionInfo.from_exception(RuntimeError("the container went down"))
        graded = SimpleNamespace(rewards={"reward": float(self._faults.rng.random() < 0.5)})
        return SimpleNamespace(**nothing, agent_execution=None, verifier_result=graded, finished_at=None)


class Meter:
    """The resident set, in KiB, and open files of a process by step."""

    def __init__(self, pid: int | str = "self") -> None:
        self._proc = Path("/proc") / str(pid)
        self.kib: dict[int, float] = {}
        self.files: dict[int, int] = {}

    def read(self, step: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.kib[step] = int((self._proc / "statm").read_text().split()[1]) * PAGE_KIB
            self.files[step] = len(list((self._proc / "fd").iterdir()))

    def forget_killed_run(self) -> None:
        """Free what the killed run had when it began: a process that is killed leaves nothing."""
        gc.unfreeze()
        gc.collect()

    def slope(self, steps: int) -> float:
        """KiB a step over the last four fifths."""
        late = {step: kib for step, kib in self.kib.items() if step >= steps // 5}
        return float(np.polyfit(list(late), list(late.values()), 1)[0]) if len(late) > 2 else 0.0


async def soak(folder: Path, arguments: argparse.Namespace, faults: Faults, meter: Meter) -> None:
    """The whole run, killed and resumed until it has made all steps."""
    outage.FIRST_PAUSE_SEC = 0.001
    for number in range(TASKS):
        text = f"Write the word {''.join(chr(97 + (number * n) % 26) for n in range(1, 9))} to {number}.txt.\n"
        write_task(folder / "tasks" / f"task-{number}", files={"instruction.md": text})

    async def new_trial(config: TrialConfig) -> Any:
        return FaultyTrial(config, faults)

    words = [
        "backend=skyrl-tx", "skyrl_tx_url=http://here:1", "model_name=models/one", f"tasks_dir={folder / 'tasks'}",
        f"batch_size={BATCH}", f"group_size={GROUP}", f"max_steps={arguments.steps}",
        f"save_every={arguments.save_every}", f"logs_dir={folder}", "run_name=run",
        f"max_steps_off_policy={arguments.most_stale}", "loss_fn=ppo", "eval_tasks=task-0", "eval_every=50",
        "allow_family_overlap=true",
    ]  # fmt: skip
    trace: list[tracemalloc.Snapshot] = []
    while True:
        venues = {"harbor": HarborVenue(FakeHost(Quiet()), new_trial)}
        outside = replace(fake_outside(Quiet(), FaultyServer(faults)), venues=venues, retries=Retries(20, sys.maxsize))
        stop = Stop()
        run = asyncio.create_task(run_training(parse(words), stop, outside))
        life = round(faults.rng.expovariate(1 / arguments.steps_a_life)) if arguments.kills else 10 * arguments.steps
        if await _lived(run, stop, RunDirectory(folder / "run"), life, faults, meter, trace, arguments):
            break
        words = [f"resume={folder / 'run'}"]
        meter.forget_killed_run()
    _show_growth(trace)


async def _lived(
    run: "asyncio.Task[int]",
    stop: Stop,
    directory: RunDirectory,
    life: int,
    faults: Faults,
    meter: Meter,
    trace: list[tracemalloc.Snapshot],
    arguments: argparse.Namespace,
) -> bool:
    """Let a process make `life` steps, then end it a random moment later; whether it ended by itself before."""
    begun = _rows(directory)
    last = begun
    while not run.done():
        await asyncio.wait([run], timeout=0.02)
        if (now := _rows(directory)) == last:
            continue
        last = now
        meter.read(now)
        if arguments.trace and now >= arguments.steps // 5 and not trace:
            _snapshot(trace)
        if now - begun >= life:
            await asyncio.wait([run], timeout=faults.rng.uniform(0, 0.2))
            break
    if not run.done():
        return await _ended(run, stop, faults)
    if isinstance(run.exception(), ServerLost):  # several times in a row at one step: then a run stops
        faults.seen["runs ended by lost servers"] += 1
        return False
    if run.result() != 0:
        raise SystemExit(f"the run ended with {run.result()}")
    if arguments.trace:
        _snapshot(trace)
    return True


async def _ended(run: "asyncio.Task[int]", stop: Stop, faults: Faults) -> bool:
    """Kill and stop in turn. Whether a run that was asked to stop was at its end."""
    if faults.seen["stops"] < faults.seen["kills"]:
        faults.seen["stops"] += 1
        stop.request("Ctrl-C", SIGNAL_STATUS)
        with contextlib.suppress(ServerLost):
            return await run == 0
        return False
    faults.seen["kills"] += 1
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    return False


def _rows(directory: RunDirectory) -> int:
    """Lines of metrics.jsonl, which is small: each step adds one."""
    try:
        with directory.metrics.open("rb") as file:
            return sum(1 for _ in file)
    except FileNotFoundError:
        return 0


def _snapshot(trace: list[tracemalloc.Snapshot]) -> None:
    gc.collect()
    trace.append(tracemalloc.take_snapshot())


def _show_growth(trace: list[tracemalloc.Snapshot]) -> None:
    if len(trace) == 2:
        for one in trace[1].compare_to(trace[0], "lineno")[:25]:
            print(one)


def soak_real(folder: Path, arguments: argparse.Namespace, meter: Meter) -> None:
    """One process of src.train; its memory is read after each step."""
    tasks = folder / "tasks"
    for task in sorted((report.ROOT / "datasets" / "quickstart").glob("create-*"))[:TASKS]:
        shutil.copytree(task, tasks / task.name)
    with server() as made:
        words = [
            "backend=skyrl-tx", f"skyrl_tx_url={made.url}", f"model_name={MODEL}", f"tasks_dir={tasks}", "lora_rank=8",
            f"batch_size={BATCH}", f"group_size={GROUP}", "max_turns=4", "max_tokens=40", "context_limit=2048",
            "learning_rate=1e-3", f"max_steps={arguments.steps}", f"save_every={arguments.save_every}",
            f"logs_dir={folder}", "run_name=run", f"max_steps_off_policy={arguments.most_stale}", "loss_fn=ppo",
            "eval_tasks=create-1", "eval_every=50", "allow_family_overlap=true",
        ]  # fmt: skip
        process = subprocess.Popen([sys.executable, "-m", "src.train", *words], cwd=report.ROOT)
        meter.__init__(process.pid)
        try:
            while process.poll() is None:
                meter.read(_rows(RunDirectory(folder / "run")))
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait()
        if process.returncode:
            raise SystemExit(f"the trainer ended with {process.returncode}")


def main() -> None:
    arguments = _arguments()
    faults, meter, began = Faults(arguments.seed), Meter(), time.monotonic()
    if arguments.trace:
        tracemalloc.start()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as name:
        folder = Path(name)
        if arguments.real:
            soak_real(folder, arguments, meter)
        else:
            asyncio.run(soak(folder, arguments, faults, meter))
        _publish(arguments, RunDirectory(folder / "run"), faults, meter, time.monotonic() - began)


def _publish(arguments: argparse.Namespace, run: RunDirectory, faults: Faults, meter: Meter, seconds: float) -> None:
    steps, slope = arguments.steps, meter.slope(arguments.steps)
    seen, records = audit(run, steps), read_lines(run.ledger, checked=True)
    fates = Counter(record["fate"].split()[0] for record in records if record["event"] == "ended")
    late = [step for step in sorted(meter.kib) if step >= steps // 5] or [0]
    left = _containers(run) if arguments.real else 0
    found = asdict(seen)
    rows = [
        ["steps; time", f"{seen.steps}; {seconds / 60:.1f} min"],
        ["trials", f"{seen.trials} started, {fates['graded']} graded, {fates['replaced']} replaced, "
         f"{fates['cancelled']} cancelled, {fates['dropped']} dropped"],
        ["faults", ", ".join(f"{n} {kind}" for kind, n in sorted(faults.seen.items()) if n) or "none injected"],
        ["steps made again after a restored state", str(seen.made_again)],
        *([name.replace("_", " "), str(found[name])] for name in AUDITED),
        ["containers left", str(left)],
        ["memory of the process, MiB", f"{meter.kib[late[0]] / 1024:.1f} at step {late[0]}, "
         f"{meter.kib[late[-1]] / 1024:.1f} at step {late[-1]}"],
        ["slope of the last four fifths, KiB a step", f"{slope:.2f}"],
        ["open files", f"{meter.files[late[0]]} and {meter.files[late[-1]]}"],
    ]  # fmt: skip
    wrong = [name for name in AUDITED if found[name]] + ["dropped"] * bool(fates["dropped"])
    one_process = arguments.real or not arguments.kills  # a killed one takes its memory with it, here it does not
    wrong += ["memory"] * (one_process and slope > FLAT_KIB and steps >= 500) + ["containers left"] * bool(left)
    name = "soak-real" if arguments.real else "soak"
    document = report.RESULTS if arguments.write else None
    report.publish("bench.soak", name, HEADINGS, rows, document, wrong=wrong)


def _containers(run: RunDirectory) -> int:
    label = f"{ownership.RUN_ID}={run_ids(run).run_id}"
    return len(engine().containers(all=True, filters={"label": label}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--most-stale", type=int, default=2, help="max_steps_off_policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-kills", dest="kills", action="store_false", help="one process to its end")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--steps-a-life", type=int, default=40, help="mean steps between two kills or stops")
    parser.add_argument("--trace", action="store_true", help="show the places that allocated most")
    parser.add_argument("--real", action="store_true", help="a real server and real containers")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
