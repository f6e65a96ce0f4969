"""What the base model can take: vocabulary and context, from its config.json."""

# pyright: reportMissingImports=false
import json
from functools import cache
from pathlib import Path
from typing import Any

from skyrl.tinker import api

LONG_CONTEXT = 131072


@cache
def model_config() -> dict[str, Any]:
    """config.json of the served model; the text part where there are several."""
    config = api.app.state.engine_config
    folder = Path(config.base_model_checkpoint_path or config.base_model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(config.base_model, allow_patterns=["*.json"], local_files_only=True))
    values = json.loads((folder / "config.json").read_text())
    return values | values.get("text_config", {})


def context_limit() -> int:
    """Tokens in one sequence, prompt and answer together: the operator's, else the model's own but at least 128K.

    Beyond max_position_embeddings a model gets worse, it does not fail; whether that is wanted is for the client.
    """
    return api.app.state.context_limit or max(model_config().get("max_position_embeddings") or 0, LONG_CONTEXT)


def own_context() -> int:
    """What an answer without max_tokens may fill: the operator's limit, else what the model was made for."""
    return api.app.state.context_limit or model_config().get("max_position_embeddings") or LONG_CONTEXT


def vocabulary() -> int:
    return model_config()["vocab_size"]
