"""Plans of a vLLM of the server, with values that a machine without a GPU takes."""

from pathlib import Path

from sampler import Plan
from tests.conftest import free_port


def plan_of(folder: Path, **values: object) -> Plan:
    plan = {"model": "m", "dtype": "float32", "context": 4096, "rank": 12, "gpus": (), "memory": 0.0, "max_deaths": 3}
    plan |= {"hang_sec": 1800.0, "log_mb": 1}
    return Plan(**plan | {"ports": (free_port(),), "folder": str(folder)} | values)  # pyright: ignore[reportArgumentType]
