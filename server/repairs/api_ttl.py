"""Checkpoints live as long as they were saved for.

Upstream: skyrl/tinker/api.py, SaveWeightsRequest and SaveWeightsForSamplerRequest drop ttl_seconds and user_metadata,
and there is no route that sets a time to live. Here it is kept and listed; a checkpoint whose time is over is not found
any more, and is deleted soon after.
"""

# pyright: reportMissingImports=false
import time
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from skyrl.tinker import api
from skyrl.tinker.types import CheckpointType
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs import api_requests, sdk_rest
from repairs.api_life import now_and_then
from repairs.api_names import sampler_name
from repairs.api_notes import CheckpointNote, Key, Published, forget_where, note, utc_now
from repairs.api_routes import Endpoint, add_route, bad_request, wrap

LONGEST_SEC = 10 * 366 * 24 * 3600
LOOK_SEC = 1.0  # between two looks at a sampler that is used: a time to live that is set while it is used counts then
GONE = "not found: its time to live is over"


class TimeToLive(BaseModel):
    ttl_seconds: int | None = None


def end(ttl_seconds: int | None) -> datetime | None:
    """When a checkpoint saved now expires. Raises 400."""
    if ttl_seconds is None:
        return None
    if not 0 < ttl_seconds <= LONGEST_SEC:
        raise bad_request(f"ttl_seconds={ttl_seconds}: give 1 to {LONGEST_SEC} seconds, or none for no end")
    return utc_now() + timedelta(seconds=ttl_seconds)


def keeping(kind: CheckpointType) -> Any:
    def wrapper(stock: Endpoint) -> Endpoint:
        async def save(request: Any, session: AsyncSession) -> Any:
            name = request.path if kind == CheckpointType.TRAINING else sampler_name(request)
            expires_at = end(request.ttl_seconds)
            made = await stock(request=request, session=session)
            values = {"expires_at": expires_at, "user_metadata": request.user_metadata}
            await note(session, (request.model_id, name, kind), **values)
            await session.commit()
            return made

        return save

    return wrapper


async def set_ttl(
    unique_id: str, checkpoint_path: str, body: TimeToLive, session: AsyncSession = sdk_rest.OPEN_SESSION
) -> None:
    """PUT .../ttl: counts from now; none: no end."""
    await note(session, await known(session, unique_id, checkpoint_path), expires_at=end(body.ttl_seconds))
    await session.commit()


async def known(session: AsyncSession, unique_id: str, checkpoint_path: str) -> Key:
    """The key of a checkpoint. Raises 404."""
    name, kind = api.parse_checkpoint_delete_path(checkpoint_path, None)
    if kind is None or await session.get(api.CheckpointDB, (unique_id, name, kind)) is None:
        raise bad_request(f"Checkpoint not found: {unique_id}/{checkpoint_path}", 404)
    return unique_id, name, kind


def without_note(stock: Endpoint) -> Endpoint:
    async def delete_checkpoint(
        request: Any,
        unique_id: str,
        checkpoint_path: str,
        checkpoint_type: CheckpointType | None,
        session: AsyncSession,
    ) -> None:
        await stock(request, unique_id, checkpoint_path, checkpoint_type, session)
        name, kind = api.parse_checkpoint_delete_path(checkpoint_path, checkpoint_type)
        for table in (CheckpointNote, Published):
            if kind is not None and (kept := await session.get(table, (unique_id, name, kind))) is not None:
                await session.delete(kept)
        await session.commit()

    return delete_checkpoint


def is_over(kept: CheckpointNote | None) -> bool:
    return kept is not None and has_passed(kept.expires_at)


def has_passed(end: datetime | None) -> bool:
    return end is not None and end <= utc_now()


def unless_over(stock: Endpoint) -> Endpoint:
    async def validate_checkpoint(
        request: Any, unique_id: str, checkpoint_id: str, checkpoint_type: CheckpointType, session: AsyncSession
    ) -> Any:
        if is_over(await session.get(CheckpointNote, (unique_id, checkpoint_id, checkpoint_type))):
            raise bad_request(f"Checkpoint {unique_id}/{checkpoint_id} {GONE}", 404)
        return await stock(request, unique_id, checkpoint_id, checkpoint_type, session)

    return validate_checkpoint


def unless_over_since(stock: Endpoint) -> Endpoint:
    looked: dict[tuple[str, str], tuple[float, datetime | None]] = {}  # when, and what was the sampler's end

    async def validate_sampler_checkpoint_once(
        request: Any, model_id: str, checkpoint_id: str, session: AsyncSession
    ) -> None:
        """skyrl looks at a sampler at its first sample alone; this looks once a second."""
        key, now = (model_id, checkpoint_id), time.monotonic()
        seen = looked.get(key)
        if seen is None or now - seen[0] > LOOK_SEC:
            kept = await session.get(CheckpointNote, (*key, CheckpointType.SAMPLER))
            seen = now, kept and kept.expires_at
            for old in [old for old, (when, _) in looked.items() if now - when > LOOK_SEC]:
                del looked[old]
            looked[key] = seen
        if has_passed(seen[1]):
            raise bad_request(f"Checkpoint {model_id}/{checkpoint_id} {GONE}", 404)
        await stock(request, model_id, checkpoint_id, session)

    return validate_sampler_checkpoint_once


def with_notes(stock: Endpoint) -> Endpoint:
    async def list_checkpoints(session: AsyncSession, **others: Any) -> dict[str, Any]:
        answer = await stock(session=session, **others)
        listed = []
        for one in answer["checkpoints"]:
            kept = await session.get(CheckpointNote, key_of(one))
            if not is_over(kept):
                listed.append(one | told(kept))
        return answer | {"checkpoints": listed}

    return list_checkpoints


def key_of(one: dict[str, Any]) -> Key:
    model_id, _, name = one["tinker_path"].removeprefix("tinker://").split("/")
    return model_id, name, CheckpointType(one["checkpoint_type"])


def told(kept: CheckpointNote | None) -> dict[str, Any]:
    if kept is None:
        return {}
    return {"expires_at": kept.expires_at, "user_metadata": kept.user_metadata}


async def delete_expired(session: AsyncSession) -> None:
    await forget_where(session, CheckpointNote.expires_at <= utc_now())  # pyright: ignore[reportOptionalOperand]


def apply() -> None:
    api_requests.apply()
    wrap("save_weights", keeping(CheckpointType.TRAINING))
    wrap("save_weights_for_sampler", keeping(CheckpointType.SAMPLER))
    wrap("validate_checkpoint", unless_over)
    wrap("validate_sampler_checkpoint_once", unless_over_since)
    wrap("delete_checkpoint", without_note)
    wrap("list_checkpoints", with_notes)
    wrap("list_user_checkpoints", with_notes)
    add_route("PUT", "/training_runs/{unique_id}/checkpoints/{checkpoint_path:path}/ttl", set_ttl)
    now_and_then(delete_expired)
