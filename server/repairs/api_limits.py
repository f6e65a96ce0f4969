"""What the base model can take, from its config.json: vocabulary and context; and what fits into the memory."""

# pyright: reportMissingImports=false
import json
from functools import cache
from pathlib import Path
from typing import Any

from skyrl.tinker import api

from repairs import positions
from repairs.api_load import memory
from repairs.shared import FILLING

LONG_CONTEXT = 131072


def model_folder() -> Path:
    """Of the served model's files, on this machine."""
    config = api.app.state.engine_config
    folder = Path(config.base_model_checkpoint_path or config.base_model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(config.base_model, allow_patterns=["*.json"], local_files_only=True))


@cache
def model_config() -> dict[str, Any]:
    """config.json of the served model; the text part where there are several."""
    values = json.loads((model_folder() / "config.json").read_text())
    return values | {name: value for name, value in values.get("text_config", {}).items() if value is not None}


@cache
def end_tokens() -> list[int]:
    """At which the model ends a text by itself; none where its files name none."""
    found = model_config().get("eos_token_id")
    generation = model_folder() / "generation_config.json"
    if generation.is_file():
        found = json.loads(generation.read_text()).get("eos_token_id", found)
    return [] if found is None else found if isinstance(found, list) else [found]


def context_limit() -> int:
    """Tokens in one sequence, prompt and answer together: the operator's, else what the model was made for."""
    return api.app.state.context_limit or positions.longest(model_config()) or LONG_CONTEXT


def fitting() -> dict[str, int]:
    """Of the context limit: tokens that fit into the engine's memory, `trained` and `sampled`, and `at_once` of these.

    {} while that is not known. vLLM has its own memory.
    """
    found, limit = memory(), context_limit()
    if not found:
        return {}
    fits = {"trained": min(limit, found["trained_tokens"])}
    if getattr(api.app.state, "vllm", None) is None:
        sampled = min(limit, found["wave_tokens"] // (1 + FILLING))
        seats = (found["wave_tokens"] - FILLING * sampled) // max(sampled, 1)
        fits |= {"sampled": sampled, "at_once": min(seats, found["seats"] or seats)}
    return fits


def whole_context() -> int:
    """Tokens of a sequence that can be both sampled and trained."""
    fits = fitting()
    return min([context_limit(), *(fits[name] for name in ("trained", "sampled") if name in fits)])


def vocabulary() -> int:
    return model_config()["vocab_size"]
