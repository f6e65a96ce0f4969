"""What must be equal on all machines of a run, and the facts of this one."""

import contextlib
import functools
import hashlib
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import requests
from docker.errors import DockerException

from harbortrainer.bundled.hosts.messages import MachineFacts
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.builds import ImageError
from harbortrainer.docker.keeping.cleaning import GB
from harbortrainer.errors import UserError, one_line

PACKAGES = ("harbor", "tinker", "transformers", "numpy")  # what decides how a trial goes and how it is stored


@functools.cache
def code(folder: Path = Path(__file__).parents[2]) -> dict[str, str]:
    """Return versions by name. Blocks."""
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.sh")]):  # one is part of every turn
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    here = {"harbortrainer": digest.hexdigest()[:12], "Python": platform.python_version()}
    return here | {name: version(name) for name in PACKAGES}


@contextlib.contextmanager
def docker_faults() -> Iterator[None]:
    """Yield a fault of the daemon in the block is a UserError."""
    try:
        yield
    except (DockerException, requests.RequestException, ImageError) as error:
        reason = one_line(error, 300)
        raise UserError(f"Docker failed ({reason}); see whether it runs: scripts/setup.sh --docker") from None


def facts() -> MachineFacts:
    """Return those of this machine. Blocks. Raises UserError when its daemon does not answer."""
    with docker_faults():
        info = engine().info()
    daemon = info["ID"], info["DockerRootDir"]
    free = shutil.disk_usage(info["DockerRootDir"]).free if Path(info["DockerRootDir"]).is_dir() else 0
    return MachineFacts(daemon, info["ServerVersion"], code(), free / GB)


def refuse_different(name: str, found: MachineFacts, others: Sequence[tuple[str, MachineFacts]]) -> None:
    """Raise UserError when host `name` has other versions than this machine, or the daemon of one of `others`."""
    mine = code()
    different = [
        f"{what} {found.code.get(what)}, here {mine[what]}" for what in mine if found.code.get(what) != mine[what]
    ]
    if different:
        raise UserError(
            f"host {name}: {'; '.join(different)}; check out the same commit there, run scripts/setup.sh --ray, and "
            "start its node again"
        )
    for other, facts in others:
        if facts.daemon == found.daemon:
            raise UserError(
                f"host {name}: shares the Docker daemon of host {other}, each would remove the other's containers; "
                "give it a daemon of its own (DOCKER_HOST), or stop one of the two nodes"
            )
