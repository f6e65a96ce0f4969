"""How much of the server's disk a run takes, said before it starts."""

from collections.abc import Mapping
from typing import Any

from src.backend.base_model import BaseModel
from src.config import Config
from src.run.checkpoints import Keep

SAMPLERS = 3  # the published one, the one before, and one whose deletion is under way
FLOAT32, MOMENTS = 4, 2  # bytes; Adam keeps two for each weight
LOG_MB = 16  # SQLite's write-ahead log, and what comes between two looks at the size
OVERHEAD = 2**20  # bytes a state: names, shapes, rank and hyperparameters


def state_bytes(model: BaseModel, rank: int) -> int | None:
    """A saved state, at most: float32 weights and both moments. None where the model's shape is not known."""
    return None if model.lora_width is None else (1 + MOMENTS) * FLOAT32 * rank * model.lora_width + OVERHEAD


def sampler_bytes(model: BaseModel, rank: int) -> int | None:
    """Sampler weights, at most."""
    return None if model.lora_width is None else FLOAT32 * rank * model.lora_width + OVERHEAD


def disk_note(config: Config, total_steps: int, model: BaseModel, about: Mapping[str, Any]) -> str:
    """One line. `about`: what a server of this project says of itself."""
    rank = config.lora_rank
    keep = Keep(config.keep_checkpoints, config.keep_best)
    states = keep.most(total_steps, config.save_every)
    state, sampler = state_bytes(model, rank), sampler_bytes(model, rank)
    if state is None or sampler is None:
        return f"disk of the server: at most {states} states and {SAMPLERS} samplers (keep_checkpoints); size not known"
    note = (
        f"disk of the server: at most {states} states x {_mb(state)} + {SAMPLERS} samplers x {_mb(sampler)} = "
        f"{_mb(states * state + SAMPLERS * sampler)} (keep_checkpoints)"
    )
    limit = about.get("keep_results_mb")
    return (
        note
        if limit is None
        else f"{note}; its database of all users' requests {limit + LOG_MB:g} MB (SKYRL_TX_KEEP_MB)"
    )


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MB" if size < 2**33 else f"{size / 2**30:,.1f} GB"
