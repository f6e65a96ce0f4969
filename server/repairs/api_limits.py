"""What the base model can take: vocabulary and context, from its config.json."""

# pyright: reportMissingImports=false
import json
from functools import cache
from pathlib import Path
from typing import Any

from skyrl.tinker import api


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


def context_limit() -> int | None:
    """Tokens in one sequence, prompt and answer together; None: neither model nor operator sets one."""
    return api.app.state.context_limit or model_config().get("max_position_embeddings")


def vocabulary() -> int:
    return model_config()["vocab_size"]
