"""What the driver and a host send one another, and how folders and trajectories travel. All of it can be pickled."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harbortrainer.config import Config
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import SamplingClient
from harbortrainer.rollout.venue import Venue


class Weights(Protocol):
    """Published weights on their way to a host."""

    def open(self, config: Config) -> SamplingClient:
        """Return what samples them, with the key of the machine that calls this. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A run, to a host. `config`: that of a run on one machine; `silence_sec`: without a poll, then the host ends.

    `server`: URL of the self-hosted server that the host must reach, "" = Tinker cloud.
    """

    config: Config
    run_id: str
    venue: Venue
    load_template: Callable[[Config], ChatTemplate]
    places: int
    powers_of_two: bool
    silence_sec: float
    server: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A host, before it does anything. `code`: of what must be equal on all machines, by name."""

    daemon: tuple[str, str]  # ID and data root: two daemons that share a configuration have one ID
    docker: str  # version
    code: dict[str, str]
    free_gb: float = 0.0  # of the daemon's disk, 0 = not known


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a poll. `states`: the newest of each trial that moved since the last one, None = ended."""

    states: dict[str, str | None] = field(default_factory=dict)
    sampled: list[int] = field(default_factory=list)  # tokens of each turn since the last report
    counters: dict[str, float] = field(default_factory=dict)  # of the host's sampler, totals
    lost_weights: bool = False  # the server does not know the published weights any more


@dataclass(frozen=True, slots=True)
class Done:
    """A trial that has ended. `hit`: the host's daemon was away meanwhile."""

    trajectory: bytes  # as run/trajectories.py packs it
    folder: bytes  # a tar file of the trial's folder
    cancelled: bool
    hit: bool
    report: Report


def pack_folder(folder: Path, *beside: str) -> bytes:
    """Get a compressed tar file with the folder under its own name, and files `beside` it where they exist. Blocks."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=folder.name)
        for name in beside:
            if (file := folder.parent / name).is_file():
                tar.add(file, arcname=name)
    return packed.getvalue()


def unpack_folder(packed: bytes, parent: Path, *, trusted: bool) -> None:
    """Write a packed folder into `parent`. Blocks.

    `trusted`: exactly as it was. Otherwise a container has written it, and what points out of `parent` is left out.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(parent, filter=tarfile.fully_trusted_filter if trusted else _inside)


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    try:
        return tarfile.data_filter(member, place)
    except tarfile.FilterError:
        return None
