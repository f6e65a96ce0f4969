"""Trials on two hosts against trials on one machine, with the same processors and as many at once.

    python -m bench.hosts [ROUNDS] [TRIALS]     needs root, scripts/setup.sh --ray in .venv-ray, some minutes

The hosts are network namespaces of this machine with a dockerd each. Rounds alternate, so both meet the same load.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conftest import BASE_IMAGE, ROOT
from tests.support.own_cluster import OwnCluster, own_cluster
from tests.support.trial_parts import make_task

SCRIPTS = {"short": {"turns": 3}, "long": {"turns": 22}}
AT_ONCE = 8


@dataclass(frozen=True)
class Round:
    """`driver_ms`, `node_ms`: CPU a trial."""

    rate: float
    driver_ms: float
    node_ms: float


def one(cluster: OwnCluster, hosts: str, script: str, trials: int) -> Round:
    """A batch of `trials`, AT_ONCE at once; without hosts on the first one's daemon."""
    with TemporaryDirectory(prefix="ht-bench-") as name:
        folder = Path(name)
        make_task(folder / "tasks")
        parallel = AT_ONCE if hosts == "none" else AT_ONCE // len(cluster.hosts)
        given: dict[str, Any] = {"folder": name, "run_id": folder.name, "n": trials, "parallel": parallel}
        given |= {"script": SCRIPTS[script], "silence_sec": 60.0, "hosts": hosts}
        process = cluster.driver(given, DOCKER_HOST=cluster.hosts[0].docker)
        assert process.stdout is not None
        batch: dict[str, Any] = {}
        nodes = 0.0
        for line in process.stdout:
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("kind") in ("ready", "batch"):
                nodes = sum(host.cpu_seconds("ray::Node") for host in cluster.hosts) - nodes
            if said.get("kind") == "batch":
                batch = said
        assert process.wait() == 0 and batch["rewards"] == {"1.0": trials}, (cluster.folder / "driver.log").read_text()
        return Round(trials / batch["seconds"], batch["cpu_ms"], 1000 * nodes / trials)


def main(rounds: int = 3, trials: int = 32) -> None:
    with own_cluster(ROOT / ".venv-ray", BASE_IMAGE, places=(AT_ONCE // 2, AT_ONCE // 2)) as cluster:
        one(cluster, "ray", "short", AT_ONCE)  # its image is built once, then copied: a local build would be another
        for script in SCRIPTS:
            pairs = [(one(cluster, "none", script, trials), one(cluster, "ray", script, trials)) for _ in range(rounds)]
            here, there = zip(*pairs, strict=True)
            ratio = statistics.median(b.rate / a.rate for a, b in pairs)
            driver, node = (statistics.median(getattr(b, name) for b in there) for name in ("driver_ms", "node_ms"))
            local = statistics.median(a.driver_ms for a in here)
            rates = " ".join(f"{a.rate:.2f}/{b.rate:.2f}" for a, b in pairs)
            print(f"{script}: trials/s here/hosts {rates}, median ratio {ratio:.2f}", flush=True)
            print(
                f"{script}: CPU ms a trial: here {local:.0f}; driver {driver:.0f} + hosts {node:.0f}, "
                f"{(driver + node) / local:.2f} times",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
