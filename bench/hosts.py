"""Trials on two hosts of this machine: network namespaces with a dockerd each.

    python -m bench.hosts rate [ROUNDS] [TRIALS]   trials a second and CPU against trials on one machine, some minutes
    python -m bench.hosts steady [TRIALS]          memory of the run's process and /dev/shm over many trials
    python -m bench.hosts quickstart [SETTING=VALUE ...]   run_quickstart.sh with hosts=ray

Needs root, and scripts/setup.sh --ray --base-image with VENV=.venv-ray. Rounds of `rate` alternate, so both sides
meet the same load; both have as many places and the same processors.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harbortrainer.durable.jsonl import read_lines
from tests.conftest import BASE_IMAGE, ROOT
from tests.support.own_cluster import OwnCluster, own_cluster
from tests.support.trial_parts import make_task

SCRIPTS = {"short": {"turns": 3}, "long": {"turns": 22}}
AT_ONCE = 8
VENV = ROOT / ".venv-ray"
MEMORY = Path("/dev/shm")
MIB = 1024**2


@dataclass(frozen=True)
class Round:
    """`driver_ms`, `node_ms`: CPU a trial; `publish_sec`: new weights on all hosts, which are idle."""

    rate: float
    driver_ms: float
    node_ms: float
    publish_sec: float


def said(cluster: OwnCluster, hosts: str, script: str, trials: int) -> Iterator[dict[str, Any]]:
    """What the driver of a batch of `trials` says, AT_ONCE at once; without hosts on the first one's daemon."""
    with TemporaryDirectory(prefix="ht-bench-") as name:
        folder = Path(name)
        make_task(folder / "tasks")
        parallel = AT_ONCE if hosts == "none" else AT_ONCE // len(cluster.hosts)
        given: dict[str, Any] = {"folder": name, "run_id": folder.name, "n": trials, "parallel": parallel}
        given |= {"script": SCRIPTS[script], "silence_sec": 60.0, "hosts": hosts}
        process = cluster.driver(given, DOCKER_HOST=cluster.hosts[0].docker)
        assert process.stdout is not None
        rewards = None
        for line in process.stdout:
            if line.startswith("{"):  # Ray writes there too, at times on the same line
                one, _ = json.JSONDecoder().raw_decode(line)
                rewards = one.get("rewards", rewards)
                yield one
        assert process.wait() == 0 and rewards == {"1.0": trials}, (cluster.folder / "driver.log").read_text()


def one_round(cluster: OwnCluster, hosts: str, script: str, trials: int) -> Round:
    found: dict[str, dict[str, Any]] = {}
    nodes = 0.0
    for one in said(cluster, hosts, script, trials):
        found[one["kind"]] = one
        if one["kind"] in ("ready", "batch"):
            nodes = sum(host.cpu_seconds("ray::Node") for host in cluster.hosts) - nodes
    batch = found["batch"]
    return Round(trials / batch["seconds"], batch["cpu_ms"], 1000 * nodes / trials, found["published"]["seconds"])


def rate(rounds: int = 3, trials: int = 32) -> None:
    with own_cluster(VENV, BASE_IMAGE, places=(AT_ONCE // 2, AT_ONCE // 2)) as cluster:
        one_round(
            cluster, "ray", "short", AT_ONCE
        )  # its image is built once and copied: a local build would be another
        for script in SCRIPTS:
            pairs = [
                (one_round(cluster, "none", script, trials), one_round(cluster, "ray", script, trials))
                for _ in range(rounds)
            ]
            here, there = zip(*pairs, strict=True)
            ratio = statistics.median(b.rate / a.rate for a, b in pairs)
            names = ("driver_ms", "node_ms", "publish_sec")
            driver, node, publish = (statistics.median(getattr(b, name) for b in there) for name in names)
            local = statistics.median(a.driver_ms for a in here)
            rates = " ".join(f"{a.rate:.2f}/{b.rate:.2f}" for a, b in pairs)
            print(f"{script}: trials/s here/hosts {rates}, median ratio {ratio:.2f}", flush=True)
            print(
                f"{script}: CPU ms a trial: here {local:.0f}; driver {driver:.0f} + hosts {node:.0f}, "
                f"{(driver + node) / local:.2f} times; published to idle hosts in {1000 * publish:.0f} ms",
                flush=True,
            )


def steady(trials: int = 500) -> None:
    """The slope of memory is that of a line through all trials but the first fifth."""
    with own_cluster(VENV, BASE_IMAGE, places=(AT_ONCE // 2, AT_ONCE // 2)) as cluster:
        one_round(cluster, "ray", "short", AT_ONCE)
        before, rss = _used(MEMORY), list[float]()
        for one in said(cluster, "ray", "short", trials):
            if one["kind"] == "trial":
                rss.append(one["rss"] / MIB)
                if len(rss) % 100 == 0:
                    print(f"{len(rss)} trials: {rss[-1]:.1f} MiB, /dev/shm {_used(MEMORY) / MIB:.1f} MiB", flush=True)
        later = rss[trials // 5 :]
        slope = 100 * np.polyfit(range(len(later)), later, 1)[0]
        print(f"RSS of the driver: {slope:+.2f} MiB in 100 trials; /dev/shm {(_used(MEMORY) - before) / MIB:+.1f} MiB")


def _used(path: Path) -> int:
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def quickstart(*settings: str) -> None:
    """Five places on each host are the ten that the quickstart has on one machine."""
    with own_cluster(VENV, BASE_IMAGE, places=(5, 5)) as cluster, TemporaryDirectory(prefix="ht-bench-") as logs:
        words = ["hosts=ray", "n_parallel_envs=4", f"logs_dir={logs}", "run_name=q", *settings]
        environment = cluster.environment | {"SKYRL_TX_HOST": cluster.head_address}
        command = [*cluster.inside(cluster.head), "./run_quickstart.sh", *words]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)
        rows = read_lines(Path(logs) / "q" / "metrics.jsonl")
        rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
        held_out = [
            (row["global_step"], round(row["eval/reward_mean"], 3)) for row in rows if "eval/reward_mean" in row
        ]
        by_host = {name: value for name, value in rows[-1].items() if name.startswith("hosts/")}
        print(f"reward, first 3 steps -> last 3: {np.mean(rewards[:3]):.2f} -> {np.mean(rewards[-3:]):.2f}")
        print(f"held out after step: {held_out}")
        print(f"{by_host}; containers left: {[host.containers() for host in cluster.hosts]}")


def main(what: str, *arguments: str) -> None:
    if what == "quickstart":
        quickstart(*arguments)
    else:
        {"rate": rate, "steady": steady}[what](*map(int, arguments))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["rate"]))
