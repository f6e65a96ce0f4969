"""The quickstart with trials beside updates against taking turns: reward and held-out reward, paired by seed.

    python -m bench.off_policy_quickstart [--seeds 1,2,3] [--most-stale 2] [--max-steps N] [--keep FOLDER] [--write]

The settings, and those of the server, are read from run_quickstart.sh. Each seed trains twice, on the same number of
trials. Reward: mean of the last third of the steps. Held out: the evaluation after the last step, paired by task too.
Ratio: p(trainer) / p(sampler) of the sampled tokens before each update, 99 % quantile over all steps.
--max-steps: shorter runs, to try the command. --keep: where the runs stay; finished ones are not run again.
"""

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

os.environ.setdefault("HARBOR_TELEMETRY", "0")

import numpy as np

from bench import report
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import read_batch
from harbortrainer.stats import Comparison, compare
from tests.support.small_server import Server

SCRIPT = report.ROOT / "run_quickstart.sh"
HELD_OUT = report.ROOT / "datasets" / "quickstart" / "held_out.txt"
HEADINGS = (
    "seed", "max_steps_off_policy", "trials", "seconds a step", "reward", "held out", "oldest, steps", "ratio p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run. `reward`: mean of the last third of the steps; `held_out`: rewards by task after the last step."""

    trials: int
    seconds: float
    reward: float
    held_out: dict[str, list[float]]
    oldest: float
    ratio_p99: float


def quickstart(array: str) -> list[str]:
    """The words of an array of run_quickstart.sh, SETTINGS or SERVER."""
    match = re.search(rf"^{array}=\((.*?)\)$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None, f"{SCRIPT}: no {array}"
    held_out = ",".join(HELD_OUT.read_text().split())
    text = re.sub(r'"\$\(paste[^)]*\)"', held_out, match.group(1))
    assert "$" not in text, f"{SCRIPT}: {array} has something that is not read here: {text}"
    return shlex.split(text)


def train(run: RunDirectory, url: str, seed: int, most_stale: int, max_steps: int | None) -> None:
    """To its end; what an earlier call began goes on."""
    if run.config.exists():
        words = [f"resume={run.path}", f"skyrl_tx_url={url}"]
    else:
        words = [*quickstart("SETTINGS"), "backend=skyrl-tx", f"skyrl_tx_url={url}", f"seed={seed}"]
        words += [f"max_steps_off_policy={most_stale}", f"logs_dir={run.path.parent}", f"run_name={run.name}"]
        words += [f"max_steps={max_steps}"] if max_steps else []
    subprocess.run([sys.executable, "-m", "src.train", *words], cwd=report.ROOT, check=True)


def result(run: RunDirectory) -> Result:
    rows = [row for row in read_lines(run.metrics) if "reward/mean" in row]
    late = rows[-max(1, len(rows) // 3) :]
    last = rows[-1]["global_step"]
    held_out: defaultdict[str, list[float]] = defaultdict(list)
    for trial in read_batch(run.trajectories("eval", last)).values():
        if trial.reward is not None:
            held_out[trial.task_name].append(trial.reward)
    logs = []
    for file in sorted((run.path / "log_ratios").glob("step_*.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            logs += [arrays[name].astype(np.float64) for name in arrays.files]
    return Result(
        trials=int(sum(row["rollout/trials"] for row in rows)),
        seconds=fmean(row["time/step"] for row in rows),
        reward=fmean(row["reward/mean"] for row in late),
        held_out=dict(held_out),
        oldest=max(row.get("off_policy/staleness_max", 0.0) for row in rows),
        ratio_p99=float(np.exp(np.quantile(np.concatenate(logs), 0.99))) if logs else float("nan"),
    )


def paired(base: dict[int, Result], other: dict[int, Result]) -> list[str]:
    """Lines: differences of the other runs to the base runs, with their 95 % intervals."""
    before, after = ({str(seed): [one.reward] for seed, one in runs.items()} for runs in (base, other))
    rewards = compare(before, after)
    before, after = ({str(seed): [_mean(one.held_out)] for seed, one in runs.items()} for runs in (base, other))
    held_out = compare(before, after)
    tasks = compare(_pooled(base), _pooled(other))
    seconds = fmean(other[seed].seconds / base[seed].seconds for seed in base)
    return [
        f"reward, paired by seed: {_difference(rewards)}",
        f"held out, paired by seed: {_difference(held_out)}",
        f"held out, paired by task over all seeds: {_difference(tasks)}",
        f"trials: {sum(r.trials for r in base.values())} and {sum(r.trials for r in other.values())}; "
        f"time of a step: {seconds:.2f} x",
    ]


def _difference(found: Comparison) -> str:
    if found.n_tasks < 2:
        return f"{found.difference:+.3f} (no interval: one pair)"
    beyond = "" if found.low <= 0 <= found.high else ", beyond chance"
    return f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f}){beyond}"


def _mean(rewards: dict[str, list[float]]) -> float:
    return fmean(fmean(one) for one in rewards.values()) if rewards else float("nan")


def _pooled(results: dict[int, Result]) -> dict[str, list[float]]:
    pooled: defaultdict[str, list[float]] = defaultdict(list)
    for one in results.values():
        for task, rewards in one.held_out.items():
            pooled[task] += rewards
    return dict(pooled)


def main() -> None:
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-quickstart-")))
        folder = folder.resolve()
        settings = dict(word.split("=", 1) for word in quickstart("SERVER")) | {"MAX_LORA_ADAPTERS": "4"}
        server = Server(folder / "server", **settings)
        stack.callback(server.stop)
        server.start()
        found: dict[int, dict[int, Result]] = {0: {}, arguments.most_stale: {}}
        for seed in arguments.seeds:
            for most_stale, results in found.items():
                run = RunDirectory(folder / f"seed-{seed}-off-{most_stale}")
                train(run, server.url, seed, most_stale, arguments.max_steps)
                results[seed] = result(run)
    rows = [_row(seed, k, found[k][seed]) for seed in arguments.seeds for k in found]
    below = "".join(f"\n* {line}" for line in paired(found[0], found[arguments.most_stale]))
    document = report.RESULTS if arguments.write else None
    report.publish("bench.off_policy_quickstart", "off-policy-quickstart", HEADINGS, rows, document, f"{below}\n")


def _row(seed: int, most_stale: int, one: Result) -> list[str]:
    numbers = [f"{one.seconds:.1f}", f"{one.reward:.3f}", f"{_mean(one.held_out):.3f}", f"{one.oldest:.0f}"]
    return [str(seed), str(most_stale), str(one.trials), *numbers, f"{one.ratio_p99:.3f}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--most-stale", type=int, default=2, help="max_steps_off_policy of the other runs")
    parser.add_argument("--max-steps", type=int, help="of shorter runs")
    parser.add_argument("--keep", help="folder for the runs; finished ones in it are not run again")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
