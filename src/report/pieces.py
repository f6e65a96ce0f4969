"""Token ids -> the text of each, with the model's tokenizer where this machine has it."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Pieces:
    """`known`: whether there is a tokenizer; without one a token's text is its id. Nothing is downloaded."""

    def __init__(self, model_name: str) -> None:
        self._tokenizer = _tokenizer(model_name) if model_name else None
        self._text = lru_cache(maxsize=None)(self._decode)

    @property
    def known(self) -> bool:
        return self._tokenizer is not None

    def text(self, token: int) -> str:
        return self._text(token)

    def _decode(self, token: int) -> str:
        if self._tokenizer is None:
            return f"{token} "
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        if "\u2581" in piece:  # sentencepiece's space, which decoding alone would drop
            return piece.replace("\u2581", " ")
        return self._tokenizer.decode([token], skip_special_tokens=False) or piece


def _tokenizer(model_name: str) -> "Tokenizer | None":
    from tokenizers import Tokenizer

    file = Path(model_name).expanduser() / "tokenizer.json"
    if not file.is_file():
        cached = _in_hub_cache(model_name)
        if cached is None:
            return None
        file = cached
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001 -- the library raises nothing narrower for a damaged file
        return None


def _in_hub_cache(model_name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model_name, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
