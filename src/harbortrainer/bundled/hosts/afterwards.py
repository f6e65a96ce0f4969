"""What a host's process leaves when it is killed is removed without it."""

import os
import subprocess
import sys
from pathlib import Path

LOOK_SEC = 2
# In the background, so that it is not a child of this process: Ray kills those. An orderly end has removed the folder.
_WAIT = """(
while kill -0 "$1" 2>/dev/null; do sleep "$2"; done
if [ -e "$3" ]; then rm -rf "$3"; exec "$4" -c "$5"; fi
) &"""
_CLEAN = "from harbortrainer.docker.keeping.cleaning import reap; reap()"


def clean_afterwards(folder: Path) -> None:
    """Remove, once this process is dead, `folder`, and from Docker what dead runs have left. Does not wait for it.

    Nothing happens if the folder is gone by then.
    """
    given = [str(os.getpid()), str(LOOK_SEC), str(folder), sys.executable, _CLEAN]
    subprocess.run(
        ["sh", "-c", _WAIT, "sh", *given],
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
