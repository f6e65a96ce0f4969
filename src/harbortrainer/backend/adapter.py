"""A folder with a PEFT adapter: what it is, and how a self-hosted server gets it as a training state."""

import hashlib
import json
import tarfile
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC, KEY_HEADER
from harbortrainer.backend.http import http_client
from harbortrainer.backend.sessions import self_hosted_key
from harbortrainer.errors import BackendError, UserError, one_line

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
CHUNK = 4 << 20  # bytes
_MORE = ("use_dora", "use_rslora", "fan_in_fan_out", "lora_bias")  # what changes an adapter beyond rank and alpha
_MORE += ("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform")


def read_adapter(given: str, folder: Path) -> dict[str, Any]:
    """Return adapter_config.json of a LoRA adapter that the server can train.

    Raises UserError, which begins with `given`.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
        rank, alpha, bias = config["r"], config["lora_alpha"], config.get("bias", "none")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{given}: {CONFIG} is no adapter's ({one_line(repr(error))}); give another folder") from None
    if not (folder / TENSORS).is_file():
        raise UserError(f"{given}: {TENSORS} is missing; save the adapter with safetensors")
    more = [f"{name}={config[name]}" for name in _MORE if config.get(name)]
    if config.get("peft_type") != "LORA" or bias != "none" or more:
        found = ", ".join([f"peft_type={config.get('peft_type')}", f"bias={bias}", *more])
        raise UserError(f"{given}: only plain LoRA can be trained on, and this has {found}; give another adapter")
    if not (isinstance(rank, int) and isinstance(alpha, int | float) and rank > 0 and alpha > 0):
        raise UserError(f"{given}: r={rank}, lora_alpha={alpha} in {CONFIG}: must be numbers above 0")
    return config


def adapter_path(folder: Path) -> str:
    """Return the tinker:// path that a server gives to this adapter: it depends on its files alone."""
    return f"tinker://adapter-{_digest(folder)[:32]}/weights/uploaded"


async def send_adapter(backend: Backend, given: str, folder: Path, path: str, model_name: str) -> None:
    """Give the adapter to the server, which knows it as `path` then. Raises UserError, BackendError."""
    digest = _digest(folder)
    if not path.startswith(f"tinker://adapter-{digest[:32]}/"):
        raise UserError(f"{given}: its files have changed since the run began; put them back or start a new run")
    session_id = backend.service.holder.get_session_id()
    about = {"session_id": session_id, "base_model": model_name, "digest": digest}

    async def body() -> AsyncIterator[bytes]:
        for piece in _archive(folder):
            yield piece

    try:
        async with http_client(CALL_LIMIT_SEC, {KEY_HEADER: self_hosted_key()}) as client:
            answer = await client.put(f"{backend.url}/api/v1/adapters", params=about, content=body())
    except httpx.HTTPError as error:
        raise BackendError(f"{given}: sending it to {backend.url}: {error or type(error).__name__}") from None
    if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
        raise BackendError(
            f"{given}: {backend.url} takes no adapters; start the server of this version (scripts/start_skyrl_tx.sh)"
        )
    if not answer.is_success:
        raise BackendError(f"{given}: the server refuses it: {one_line(answer.text, 300)}")


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for piece in _archive(folder):
        found.update(piece)
    return found.hexdigest()


def _archive(folder: Path) -> Iterator[bytes]:
    """A tar.gz of both files, not compressed: the same bytes for the same files."""
    for name in (CONFIG, TENSORS):
        entry = tarfile.TarInfo(name)
        entry.size = (folder / name).stat().st_size
        yield _stored(entry.tobuf())
        with (folder / name).open("rb") as file:
            while data := file.read(CHUNK):
                yield _stored(data)
        yield _stored(bytes(-entry.size % tarfile.BLOCKSIZE))
    yield _stored(bytes(2 * tarfile.BLOCKSIZE))


def _stored(data: bytes) -> bytes:
    return zlib.compress(data, level=0, wbits=31)
