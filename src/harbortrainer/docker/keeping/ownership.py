"""Labels of everything that a run creates on a Docker daemon: whose it is, and whether that lives."""

from collections.abc import Mapping
from datetime import UTC, datetime

from harbortrainer.durable.process import PID, lives, this_process

LABEL = "harbortrainer"
RUN_ID = "harbortrainer.run_id"
TRIAL = "harbortrainer.trial"
DIGEST = "harbortrainer.digest"
BUILT = "harbortrainer.built"  # an image's: when it was built
BUILT_FOR = "harbortrainer.built-for"  # and for which run
NETWORK = "harbortrainer.network"  # of the network that all trials share: the version of its options
BRIDGE = "harbortrainer.bridge"  # and its interface on the daemon's machine


def labels(run_id: str, trial: str = "") -> dict[str, str]:
    """Return labels of a container, network or volume of this process."""
    return {LABEL: "1", RUN_ID: run_id, TRIAL: trial} | this_process()


def image_labels(digest: str, run_id: str) -> dict[str, str]:
    """Return labels of an image that is built once for all runs."""
    return {LABEL: "1", DIGEST: digest, BUILT: datetime.now(UTC).isoformat(timespec="seconds"), BUILT_FOR: run_id}


def running(run_id: str) -> dict[str, object]:
    """Return Docker's filter for the running containers that this process started for the run."""
    marks = {LABEL: "1", RUN_ID: run_id} | this_process()
    return {"label": [f"{name}={value}" for name, value in marks.items()], "status": "running"}


def is_left_over(marks: Mapping[str, str], run_id: str | None = None) -> bool:
    """Return whether an object with these labels may be removed.

    It may when its process is dead, or when it belongs to the run `run_id` and no other process is known to live.
    """
    if PID not in marks or marks.get(LABEL) != "1":
        return False  # an image that runs share names no process
    alive = lives(marks)
    if alive is False:
        return True
    mine = all(marks.get(name) == value for name, value in this_process().items())
    return run_id is not None and marks.get(RUN_ID) == run_id and (mine or alive is None)
