"""A whole model from its base and an adapter, by the Tinker cookbook in a Python that has torch."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from harbortrainer.errors import UserError

_NEEDED = "import torch; from tinker_cookbook.weights import build_hf_model"
_BUILD = (
    f"{_NEEDED}; import sys; build_hf_model(base_model=sys.argv[1], adapter_path=sys.argv[2], output_path=sys.argv[3])"
)


async def check_merging(python: str | None) -> None:
    """Raises UserError where that Python cannot merge."""
    status, said = await _run(python, _NEEDED)
    if status:
        raise UserError(
            f"merged=true: {python or sys.executable} has no tinker-cookbook with torch ({said}); install this "
            "package's extra export, or give python=PATH of an environment that has them"
        )


async def merge(python: str | None, model_name: str, adapter: Path, whole: Path) -> None:
    """Write the model into the folder `whole`, which does not exist. Raises UserError."""
    status, said = await _run(python, _BUILD, model_name, str(adapter), str(whole))
    if status:
        raise UserError(f"merged=true: tinker_cookbook.weights.build_hf_model failed: {said}")


async def _run(python: str | None, program: str, *words: str) -> tuple[int, str]:
    """Exit status, and the last line that it said."""
    command = [python or sys.executable, "-c", program, *words]
    try:
        child = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    except OSError as error:
        return 1, str(error.strerror)
    try:
        said, _ = await child.communicate()
    finally:
        if child.returncode is None:  # stopped
            child.kill()
            await child.wait()
    lines = said.decode(errors="replace").strip().splitlines()
    return child.returncode or 0, lines[-1] if lines else ""
