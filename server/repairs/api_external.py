"""Adapters leave the server and come to it as PEFT files.

Upstream: skyrl/tinker/api.py lacks save_weights_external and external_weights_urls, by which SDK 0.38, its command
`tinker checkpoint download` and tinker_cookbook.weights fetch weights. Here external weights are a sampler checkpoint
under a name with PREFIX: adapter_model.safetensors, in float32, and adapter_config.json. A URL of a file holds a
signature instead of the key. An adapter that is sent becomes a training state, which engine_external loads.
"""

# pyright: reportMissingImports=false
import asyncio
import hashlib
import hmac
import json
import os
import secrets
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from skyrl.tinker import api, types
from skyrl.tinker.types import CheckpointType
from sqlmodel.ext.asyncio.session import AsyncSession
from starlette.responses import StreamingResponse

from repairs import api_requests, sdk_rest
from repairs.api_base_model import require_served
from repairs.api_routes import Endpoint, add_route, bad_request, wrap
from repairs.handover import CONFIG, DAMAGED, TENSORS
from repairs.shared import PREFIX, sampler_file

KIND, FILES = "external_weights", (CONFIG, TENSORS)
SIGNED_SEC, PIECE = 3600, 1 << 20
UPLOADED = "uploaded"  # the name of an adapter's state; its model is adapter-DIGEST
_secret = secrets.token_bytes(32)


class SaveWeightsExternalRequest(BaseModel):
    model_id: str
    path: str
    seq_id: int | None = None
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: str | None = None


async def save_weights_external(
    request: SaveWeightsExternalRequest, session: AsyncSession = sdk_rest.OPEN_SESSION
) -> api.FutureResponse:
    """Raises 400."""
    if request.age_encryption_recipients:
        raise bad_request("age_encryption_recipients: this server does not encrypt what it gives out; leave it out")
    name = PREFIX + request.path
    asked = {"model_id": request.model_id, "path": name, "seq_id": request.seq_id, "ttl_seconds": request.ttl_seconds}
    try:
        sampler = api_requests.SaveWeightsForSamplerRequest.model_validate(asked)
    except ValueError:
        raise bad_request(f"path={request.path}: letters, digits, - and _ only") from None
    return await api.save_weights_for_sampler(request=sampler, session=session)


async def external_weights_urls(
    request: Request, unique_id: str, name: str, session: AsyncSession = sdk_rest.OPEN_SESSION
) -> dict[str, Any]:
    """Raises 404."""
    await api.validate_checkpoint(request, unique_id, PREFIX + name, CheckpointType.SAMPLER, session)
    expires = int(time.time()) + SIGNED_SEC
    base = f"{str(request.base_url).rstrip('/')}/api/v1/{KIND}/{unique_id}/{name}"
    signed = {file: f"{base}/{file}?expires={expires}&signature={sign(unique_id, name, expires)}" for file in FILES}
    return {"urls": signed, "expires": datetime.fromtimestamp(expires, UTC)}


def sign(*about: object) -> str:
    return hmac.new(_secret, json.dumps(about).encode(), hashlib.sha256).hexdigest()


async def external_file(unique_id: str, name: str, file: str, expires: int, signature: str) -> StreamingResponse:
    """A file of external weights. Raises 403, 404."""
    if not hmac.compare_digest(sign(unique_id, name, expires).encode(), signature.encode()) or expires < time.time():
        raise bad_request("this URL is not signed by this server, or has expired; ask for it again", 403)
    archive = sampler_file(api.app.state.engine_config.checkpoints_base, unique_id, PREFIX + name)
    if file not in FILES or not await asyncio.to_thread(archive.exists):
        raise bad_request(f"{unique_id}/{KIND}/{name}/{file} not found", 404)
    headers = {"Content-Length": str(await asyncio.to_thread(size_in, archive, file))}
    return StreamingResponse(pieces(archive, file), media_type="application/octet-stream", headers=headers)


def size_in(archive: Any, file: str) -> int:
    with archive.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:gz") as tar:
        return tar.getmember(file).size


def pieces(archive: Any, file: str) -> Iterator[bytes]:
    with archive.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:gz") as tar:
        data = tar.extractfile(file)
        while data and (piece := data.read(PIECE)):
            yield piece


async def upload_adapter(
    request: Request, session_id: str, base_model: str, digest: str, session: AsyncSession = sdk_rest.OPEN_SESSION
) -> dict[str, str]:
    """Body: a tar.gz of adapter_config.json and adapter_model.safetensors. Returns its path. Raises 400, 404."""
    require_served(base_model)
    await sdk_rest.require_session(session, session_id)
    if len(digest) != 64 or not digest.isalnum():
        raise bad_request(f"digest={digest}: the SHA-256 of the body is needed")
    model_id, base = f"adapter-{digest[:32]}", api.app.state.engine_config.checkpoints_base
    if not isinstance(base, Path):
        raise bad_request("adapters cannot be sent to a server whose checkpoints are in a cloud")
    if await session.get(api.CheckpointDB, (model_id, UPLOADED, CheckpointType.TRAINING)) is None:
        lora = await receive(request, base / model_id / f"{UPLOADED}.tar.gz", digest)
        await enter(session, model_id, session_id, base_model, lora)
    return {"path": f"tinker://{model_id}/weights/{UPLOADED}"}


async def receive(request: Request, place: Path, digest: str) -> types.LoraConfig:
    """Write the body to `place`, whole or not at all. Raises 400."""
    new, found = place.with_name(f".{secrets.token_hex(8)}.new"), hashlib.sha256()
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new.open("wb") as file:
            async for piece in request.stream():
                found.update(piece)
                await asyncio.to_thread(file.write, piece)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if found.hexdigest() != digest:
            raise bad_request("the adapter did not arrive whole; send it again")
        lora = await asyncio.to_thread(read_lora, new)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)
    return lora


def read_lora(archive: Path) -> types.LoraConfig:
    """Raises 400."""
    try:
        with tarfile.open(archive) as tar:
            if sorted(tar.getnames()) != sorted(FILES) or not all(member.isfile() for member in tar.getmembers()):
                raise ValueError(f"give {' and '.join(FILES)}")
            config = json.loads(tar.extractfile(CONFIG).read())  # pyright: ignore[reportOptionalMemberAccess]
        return types.LoraConfig(rank=config["r"], alpha=config["lora_alpha"], seed=0)
    except (*DAMAGED, ValueError, KeyError, TypeError, OSError) as error:
        raise bad_request(f"no adapter that this server reads: {error or type(error).__name__}") from error


async def enter(session: AsyncSession, model_id: str, session_id: str, base_model: str, lora: types.LoraConfig) -> None:
    """Rows of a model that was never loaded, and of its state."""
    if await session.get(api.ModelDB, model_id) is None:
        known = {"base_model": base_model, "lora_config": lora.model_dump(), "status": "unloaded"}
        session.add(api.ModelDB(model_id=model_id, session_id=session_id, request_id=0, **known))
        await session.flush()
    done = {"status": api.CheckpointStatus.COMPLETED, "completed_at": datetime.now(UTC)}
    kind = CheckpointType.TRAINING
    session.add(api.CheckpointDB(model_id=model_id, checkpoint_id=UPLOADED, checkpoint_type=kind, **done))
    await session.commit()


def of_external_too(stock: Any) -> Any:
    def parse_checkpoint_delete_path(path: str, kind: CheckpointType | None) -> tuple[str, CheckpointType | None]:
        if path.startswith(f"{KIND}/"):
            path = f"sampler_weights/{PREFIX}{path.removeprefix(f'{KIND}/')}"
        return stock(path, kind)

    return parse_checkpoint_delete_path


def named(stock: Endpoint) -> Endpoint:
    async def list_checkpoints(**arguments: Any) -> dict[str, Any]:
        answer = await stock(**arguments)
        return answer | {"checkpoints": [renamed(one) for one in answer["checkpoints"]]}

    return list_checkpoints


def renamed(one: dict[str, Any]) -> dict[str, Any]:
    before, after = f"sampler_weights/{PREFIX}", f"{KIND}/"
    if not one["checkpoint_id"].startswith(before):
        return one
    paths = {key: one[key].replace(before, after) for key in ("checkpoint_id", "tinker_path")}
    return one | paths | {"checkpoint_type": "external"}


def apply() -> None:
    api_requests.apply()
    wrap("parse_checkpoint_delete_path", of_external_too)
    wrap("list_checkpoints", named)
    wrap("list_user_checkpoints", named)
    add_route("POST", "/save_weights_external", save_weights_external)
    add_route("GET", f"/training_runs/{{unique_id}}/checkpoints/{KIND}/{{name}}/{KIND}_urls", external_weights_urls)
    add_route("GET", f"/{KIND}/{{unique_id}}/{{name}}/{{file}}", external_file)
    add_route("PUT", "/adapters", upload_adapter)
