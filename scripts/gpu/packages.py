"""Copies the installed packages that a machine without network lacks, from the two environments of this checkout.

python -m scripts.gpu.packages DIRECTORY

`trainer.list` and `server.list` beside this file name them: what a run imports, less what an image with JAX for CUDA,
flax, torch, transformers and numpy has. DIRECTORY gets `trainer`, `server`, and `common` for packages that both need
in one version; there, PYTHONPATH=trainer:common and server:common replace the environments. Same Python minor version.
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = {"trainer": ROOT / ".venv", "server": ROOT / "server" / ".venv"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(part: str) -> list[str]:
    return (HERE / f"{part}.list").read_text().split()


def installed(environment: Path) -> dict[str, Distribution]:
    """Normalised name -> distribution. Exits where the environment is missing."""
    folders = sorted(environment.glob("lib/python3.*/site-packages"))
    if not folders:
        sys.exit(f"error: {environment} is missing; run scripts/setup.sh --dev and scripts/setup.sh --server")
    return {normal(one.metadata["Name"]): one for one in distributions(path=[str(folders[0])])}


def chosen(part: str) -> dict[str, Distribution]:
    found = installed(ENVIRONMENTS[part])
    missing = [name for name in wanted(part) if name not in found]
    if missing:
        sys.exit(f"error: {part}.list: not installed in {ENVIRONMENTS[part]}: {', '.join(missing)}")
    return {name: found[name] for name in wanted(part)}


def copy(distribution: Distribution, folder: Path) -> None:
    """The files of a distribution, as pip records them, without programs and bytecode."""
    for file in distribution.files or ():
        if file.suffix != ".pyc" and ".." not in file.parts:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(distribution.locate_file(file)), target)


def strip(directory: Path) -> None:
    """Take the debugging symbols out of all libraries, a third of all bytes, where `strip` is installed."""
    if shutil.which("strip"):
        libraries = [str(file) for file in directory.rglob("*.so*") if file.is_file()]
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


def main(directory: Path) -> None:
    parts = {part: chosen(part) for part in ENVIRONMENTS}
    trainer, server = parts["trainer"], parts["server"]
    common = {name for name in trainer.keys() & server.keys() if trainer[name].version == server[name].version}
    for part, found in parts.items():
        for name, distribution in found.items():
            copy(distribution, directory / ("common" if name in common else part))
    strip(directory)
    print(f"{directory}: {len(trainer)} packages for the trainer, {len(server)} for the server, {len(common)} for both")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
