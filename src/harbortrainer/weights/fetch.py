"""Fetches the files of a training state's adapter as Tinker's SDK does: as external weights, file by file."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

import httpx

from harbortrainer.backend.adapter import CONFIG, TENSORS
from harbortrainer.backend.contract import CALL_LIMIT_SEC, CallLimits
from harbortrainer.backend.faults import awaited, plain, sdk_errors
from harbortrainer.backend.http import http_client
from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError, UserError

SAMPLER = "/sampler_weights/"
TTL_SEC = 3600  # the shortest that Tinker takes
NAME = "export"


async def fetch_adapter(session: Session, path: str, model_name: str, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors of a training state. Raises UserError, BackendError."""
    if SAMPLER in path:
        raise UserError(f"checkpoint={path}: weights saved for sampling cannot be fetched; give a training state")
    async with _external(session, path) as external, http_client(CALL_LIMIT_SEC) as client:
        asking = session.rest.get_external_weights_urls(external)
        for name, url in (await awaited(f"the files of {external}", asking, CALL_LIMIT_SEC)).urls.items():
            if PurePosixPath(name).name != name:
                raise BackendError(f"{external}: a file has the name {name!r}, which leads elsewhere")
            await _download(client, url, folder / name)
    if not all((folder / name).is_file() for name in (CONFIG, TENSORS)):
        raise BackendError(f"{path}: the server gave no {CONFIG} and {TENSORS}")
    config = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": model_name}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


@contextlib.asynccontextmanager
async def _external(session: Session, path: str) -> AsyncIterator[str]:
    """The path of external weights, which exist while the block runs."""
    limit, service = CallLimits().update_sec, session.service
    client = await awaited(f"restoring {path}", service.create_training_client_from_state(path), limit)
    saving = client.save_weights_external(NAME, ttl_seconds=TTL_SEC)
    external = (await awaited(f"saving {path} as files", saving, limit)).path
    try:
        yield external
    finally:
        with contextlib.suppress(TimeoutError, *sdk_errors()):  # they expire
            await session.rest.delete_checkpoint_from_tinker_path(external)


async def _download(client: httpx.AsyncClient, url: str, place: Path) -> None:
    """Without a key: the URL holds a signature. Raises BackendError."""
    try:
        async with client.stream("GET", url) as answer:
            answer.raise_for_status()
            with place.open("wb") as file:
                async for piece in answer.aiter_bytes():
                    file.write(piece)
    except httpx.HTTPError as error:
        raise BackendError(f"{place.name}: {plain(error)}; export again") from None
