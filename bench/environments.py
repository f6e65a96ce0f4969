"""What trials cost in Harbor's own Docker environment, in ours, and as bare Engine API calls. The policy is instant.

    python -m bench.environments [--rounds 3] [--trials 24] [--turns 20] [--parallel 8] [--variants ours raw] [--write]

Short trials have three turns (a command, and twice "done"), long ones `--turns` turns with a command each. An instant
policy saturates the machine; ours are measured with one that takes 1 s a turn too. The variants take turns within each
round; medians over the rounds count. CPU is that of the whole machine: leave it alone meanwhile.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HARBOR_TELEMETRY", "0")

from bench import report
from bench.variants import RUN_ID, VARIANTS, Ours, Run, Script, Stock, Variant, light_task
from harbortrainer.docker.images.image import images_of
from harbortrainer.docker.keeping.cleaning import reap

SHORT = Script(n_commands=1, turns=3)
# a machine with CPU to spare, as while a model is sampled; each command may take 1 s, and takes none
PACED = Script(n_commands=5, turns=5, wait_sec=1.0, latency_sec=1.0)
HEADINGS = (
    "", "trials/s", "s outside the agent", "the same, policy 1 s a turn", "s/turn",
    "s/turn, policy 1 s a turn, waits up to 1 s", "CPU ms/trial: own", "dockerd", "rest", "CPU ms/turn",
)  # fmt: skip
DAEMONS = ("dockerd", "containerd")
_TICK = os.sysconf("SC_CLK_TCK")
Numbers = dict[str, float]


@dataclass
class Cost:
    """Seconds. `rest` is everything else on the machine: runc and shims, what runs in containers, the docker CLI."""

    wall: float = 0.0
    own: float = 0.0
    daemon: float = 0.0
    rest: float = 0.0


def main() -> None:
    arguments = _arguments()
    try:
        asyncio.run(_run(arguments))
    finally:
        reap(RUN_ID)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=24, help="short trials a round; of stock as many as --parallel")
    parser.add_argument("--turns", type=int, default=20, help="turns of a long trial; 0 = no long trials")
    parser.add_argument("--parallel", type=int, default=8, help="trials at once")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", nargs="+", choices=names, default=names)
    parser.add_argument("--write", action="store_true", help="put the tables into bench/RESULTS.md")
    arguments = parser.parse_args()
    if arguments.write and arguments.variants != names:
        parser.error("--write needs all variants: the table has a row for each")
    return arguments


async def _run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        task = light_task(Path(folder))
        await images_of(task)
        await _compare(task, arguments)


async def _compare(task: Path, arguments: argparse.Namespace) -> None:
    rounds: defaultdict[str, list[Numbers]] = defaultdict(list)
    long = Script(arguments.turns, arguments.turns)
    variants = [variant for variant in VARIANTS if variant.name in arguments.variants]
    for variant in variants:  # imports, caches, Docker's image store
        await variant(task, 1, SHORT).run(1)
    for _ in range(arguments.rounds):
        for variant in variants:
            rounds[variant.name].append(await _round(variant, task, arguments, long))
    rows = [[name, *_row(medians(numbers))] for name, numbers in rounds.items()]
    below = "\n".join(f"* {line}" for line in _ratios(rounds))
    document = report.RESULTS if arguments.write else None
    report.publish("bench.environments", "environments", HEADINGS, rows, document, below)


async def _round(variant: type[Variant], task: Path, arguments: argparse.Namespace, long: Script) -> Numbers:
    parallel = arguments.parallel
    # stock's trials take half a minute each
    numbers = await _short(variant(task, parallel, SHORT), parallel if variant is Stock else arguments.trials)
    if variant is Ours:
        numbers |= await _paced(variant(task, parallel, PACED), 4 * parallel)
    if long.turns and variant.has_turns:
        numbers |= await _long(variant(task, parallel, long), parallel, long.turns)
    print(variant.name, " ".join(f"{name}={value:.3g}" for name, value in numbers.items()), flush=True)
    return numbers


async def _short(variant: Variant, n: int) -> Numbers:
    with metered() as cost:
        runs = await variant.run(n)
    _refuse_faults(variant.name, runs)
    numbers = {"trials_per_s": n / cost.wall} | _cpu("trial", cost, n)
    return numbers | ({"outside": statistics.median(run.outside for run in runs)} if runs else {})


async def _paced(variant: Variant, n: int) -> Numbers:
    runs = await variant.run(n)
    _refuse_faults(variant.name, runs)
    turn = statistics.median(run.agent for run in runs) / PACED.turns
    stages = {f"s_{name}": statistics.median(run.stages[name] for run in runs) for name in runs[0].stages}
    return {"paced_outside": statistics.median(run.outside for run in runs), "paced_turn": turn} | stages


async def _long(variant: Variant, n: int, turns: int) -> Numbers:
    with metered() as cost:
        runs = await variant.run(n)
    _refuse_faults(variant.name, runs)
    per_turn = statistics.median(run.agent for run in runs) / turns
    return {"turn": per_turn, "turn_cpu": 1000 * (cost.own + cost.daemon + cost.rest) / n / turns}


def _cpu(unit: str, cost: Cost, n: int) -> Numbers:
    return {f"{unit}_{part}": 1000 * getattr(cost, part) / n for part in ("own", "daemon", "rest")}


def medians(rounds: list[Numbers]) -> Numbers:
    return {name: statistics.median(numbers[name] for numbers in rounds) for name in rounds[0]}


def _row(numbers: Mapping[str, float]) -> list[str]:
    names = {"trials_per_s": "{:.2f}", "outside": "{:.2f}", "paced_outside": "{:.2f}", "turn": "{:.3f}"}
    names["paced_turn"] = "{:.3f}"
    names |= dict.fromkeys(("trial_own", "trial_daemon", "trial_rest", "turn_cpu"), "{:.0f}")
    return [form.format(numbers[name]) if name in numbers else "" for name, form in names.items()]


def _ratios(rounds: Mapping[str, list[Numbers]]) -> list[str]:
    """Ours against the others: medians over the rounds of the ratio within a round."""
    lines = []
    for other in {"stock", "raw"} & set(rounds) if "ours" in rounds else ():
        pairs = zip(rounds["ours"], rounds[other], strict=True)
        ratios = [ours["trials_per_s"] / theirs["trials_per_s"] for ours, theirs in pairs]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"trials a second, ours / {other}: {statistics.median(ratios):.2f} ({spread})")
    return lines


def _refuse_faults(name: str, runs: list[Run]) -> None:
    if faults := [run.fault for run in runs if run.fault]:
        raise SystemExit(f"{name}: {len(faults)} of {len(runs)} trials failed, the first with: {faults[0]}")


@contextmanager
def metered() -> Iterator[Cost]:
    """Measures its block. CPU is the whole machine's: nothing else should run meanwhile."""
    cost = Cost()
    wall, own, daemon, machine = _clocks()
    yield cost
    wall, own, daemon, machine = (now - then for now, then in zip(_clocks(), (wall, own, daemon, machine), strict=True))
    cost.wall, cost.own, cost.daemon, cost.rest = wall, own, daemon, max(0.0, machine - own - daemon)


def _clocks() -> tuple[float, float, float, float]:
    return time.monotonic(), time.process_time(), _daemon_cpu(), _machine_cpu()


def _daemon_cpu() -> float:
    """CPU seconds so far of dockerd and containerd; 0 when they run elsewhere."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in DAEMONS:
            ticks += sum(int(field) for field in rest.split()[11:13])
    return ticks / _TICK


def _machine_cpu() -> float:
    """CPU seconds so far of all processes: user, nice, system, irq, softirq."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[i]) for i in (0, 1, 2, 5, 6)) / _TICK


if __name__ == "__main__":
    main()
