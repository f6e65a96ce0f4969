"""The command `doctor hosts`: a line for each machine of a Ray cluster, and why it cannot run trials."""

import os
from dataclasses import replace

from harbortrainer.bundled.hosts.arguments import HostsArgs
from harbortrainer.bundled.hosts.messages import Job
from harbortrainer.bundled.hosts.ray_cluster import START, Surveyed, survey
from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.venues.harbor.venue import VENUE, load_template

SILENCE_SEC = 30.0


async def check(args: HostsArgs) -> int:
    """Exit status. Raises UserError without a cluster, and without any host."""
    config = Config(model_name="", tasks_dir="")
    job = Job(
        config, f"doctor-{os.getpid()}", VENUE, load_template, places=1, powers_of_two=False, silence_sec=SILENCE_SEC
    )
    if args.skyrl_tx_url:
        config = Config(model_name="", tasks_dir="", backend="skyrl-tx", skyrl_tx_url=args.skyrl_tx_url)
        job = replace(job, config=config, server=args.skyrl_tx_url.rstrip("/"))
    found = await survey(job)
    if not found:
        raise UserError(f"no node of the cluster offers trials; {START}")
    for host in found:
        print(_line(host))
    print("Ray's ports are for trusted networks only: the token is all that protects them, and nothing is encrypted")
    return 1 if any(host.problem for host in found) else 0


def _line(host: Surveyed) -> str:
    words = [f"{host.places} places"]
    if (facts := host.facts) is not None:
        words += [f"Docker {facts.docker} in {facts.daemon[1]}", f"{facts.free_gb:.0f} GB free"]
        words += [f"Python {facts.code['Python']}", f"code {facts.code['harbortrainer']}"]
        words += [f"round trip {1000 * host.round_trip_sec:.0f} ms"]
    return f"host {host.name}: {', '.join(words)}: {host.problem or 'ok'}"
