"""What SDK 0.38's RestClient and ServiceClient ask for and skyrl does not have, or answers in another form.

Upstream: skyrl/tinker/api.py. There are no routes for a user's checkpoints, for sessions and for the end of one; paths
of checkpoints do not take the model ids that the SDK makes; checkpoints are listed by an id that delete refuses. A
session without a heartbeat (the SDK's first comes after 10 s), or with one after its time-out, keeps its slots.
"""

# pyright: reportMissingImports=false
from datetime import UTC, datetime
from typing import Any

import fastapi
from fastapi import Depends
from skyrl.tinker import api, types
from sqlmodel import col, func, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs.api_routes import Endpoint, add_route, bad_request, open_endpoint, wrap

MODEL_ID = fastapi.Path(pattern=r"^[a-zA-Z0-9_:-]+$", max_length=255)
WITH_MODEL_ID = (
    "get_checkpoint_archive_url",
    "download_checkpoint_archive",
    "delete_checkpoint",
    "list_checkpoints",
    "list_checkpoints_models",
)
OPEN_SESSION = Depends(api.get_session)
KINDS = {types.CheckpointType.TRAINING: "weights", types.CheckpointType.SAMPLER: "sampler_weights"}


def described(row: api.CheckpointDB) -> dict[str, Any]:
    """A checkpoint as the SDK's types.Checkpoint."""
    name = f"{KINDS[row.checkpoint_type]}/{row.checkpoint_id}"
    return {
        "checkpoint_id": name,
        "checkpoint_type": row.checkpoint_type.value,
        "time": row.completed_at,
        "tinker_path": f"tinker://{row.model_id}/{name}",
    }


def completed() -> Any:
    is_completed = api.CheckpointDB.status == api.CheckpointStatus.COMPLETED
    return select(api.CheckpointDB).where(is_completed).order_by(col(api.CheckpointDB.created_at))


async def list_checkpoints(unique_id: str, session: AsyncSession) -> dict[str, Any]:
    rows = await session.exec(completed().where(api.CheckpointDB.model_id == unique_id))
    return {"checkpoints": [described(row) for row in rows.all()]}


async def list_user_checkpoints(
    limit: int = 100, offset: int = 0, session: AsyncSession = OPEN_SESSION
) -> dict[str, Any]:
    rows = (await session.exec(completed().offset(offset).limit(limit))).all()
    total = (await session.exec(select(func.count()).select_from(completed().subquery()))).one()
    cursor = {"offset": offset, "limit": limit, "total_count": total}
    return {"checkpoints": [described(row) for row in rows], "cursor": cursor}


async def list_sessions(limit: int = 20, offset: int = 0, session: AsyncSession = OPEN_SESSION) -> dict[str, Any]:
    newest_first = col(api.SessionDB.created_at).desc()
    rows = await session.exec(select(api.SessionDB.session_id).order_by(newest_first).offset(offset).limit(limit))
    return {"sessions": list(rows.all())}


async def get_session(session_id: str, session: AsyncSession = OPEN_SESSION) -> dict[str, Any]:
    found = await require_session(session, session_id)
    models = await session.exec(select(api.ModelDB.model_id).where(api.ModelDB.session_id == session_id))
    samplers = await session.exec(
        select(api.SamplingSessionDB.sampling_session_id).where(api.SamplingSessionDB.session_id == session_id)
    )
    metadata = {key: str(value) for key, value in found.user_metadata.items()}
    return {
        "training_run_ids": list(models.all()),
        "sampler_ids": list(samplers.all()),
        "user_metadata": metadata or None,
    }


async def require_session(session: AsyncSession, session_id: str) -> Any:
    found = await session.get(api.SessionDB, session_id)
    if found is None:
        raise bad_request(f"Session not found: {session_id}", 404)
    return found


async def finish_session(session_id: str, session: AsyncSession = OPEN_SESSION) -> None:
    """The client says goodbye: its models' slots are free at once, not after the session's timeout."""
    found = await require_session(session, session_id)
    found.status = "finished"  # and so it stays: a late heartbeat does not open it again
    unloaded = col(api.ModelDB.status).in_(["unloading", "unloaded"])
    models = await session.exec(select(api.ModelDB).where(api.ModelDB.session_id == session_id, ~unloaded))
    for model in models.all():
        model.status = "unloading"
        await api.create_future(session, types.RequestType.UNLOAD_MODEL, model.model_id, types.UnloadModelInput())
    await session.commit()


def begun(stock: Endpoint) -> Endpoint:
    async def create_session(request: Any, session: AsyncSession) -> Any:
        """Counts as the first heartbeat."""
        made = await stock(request=request, session=session)
        await change_session(session, made.session_id, last_heartbeat_at=datetime.now(UTC))
        return made

    return create_session


def opened_again(stock: Endpoint) -> Endpoint:
    async def session_heartbeat(request: Any, raw_request: fastapi.Request, session: AsyncSession) -> Any:
        """A client that was silent for too long has lost its models; those that it makes now must end with it too."""
        answer = await stock(request=request, raw_request=raw_request, session=session)
        if (await require_session(session, request.session_id)).status == "expired":
            await change_session(session, request.session_id, status="active")
        return answer

    return session_heartbeat


async def change_session(session: AsyncSession, session_id: str, **values: Any) -> None:
    async with api.app.state.db_write_lock:
        await session.exec(update(api.SessionDB).where(col(api.SessionDB.session_id) == session_id).values(**values))
        await session.commit()


async def dynamic_config() -> dict[str, Any]:
    return {}  # the SDK's defaults


def of_either_kind(stock: Endpoint) -> Endpoint:
    async def get_weights_info(
        request: api.WeightsInfoRequest, req: fastapi.Request, session: AsyncSession
    ) -> dict[str, Any]:
        """Of sampler weights too, which upstream refuses."""
        path = types.TinkerPath.parse(request.tinker_path)
        if path is None or path.kind != "sampler_weights":
            return (await stock(request=request, req=req, session=session)).model_dump()
        model = await api.get_model(session, path.primary_id)
        await api.validate_checkpoint(req, path.primary_id, path.secondary_id, types.CheckpointType.SAMPLER, session)
        rank = types.LoraConfig.model_validate(model.lora_config).rank
        return {"base_model": model.base_model, "is_lora": rank > 0, "lora_rank": rank}

    return get_weights_info


def with_rank(stock: Endpoint) -> Endpoint:
    async def get_model_info(request: api.GetInfoRequest, session: AsyncSession) -> dict[str, Any]:
        answer = (await stock(request=request, session=session)).model_dump()
        rank = answer["model_data"]["lora_config"]["rank"]
        return answer | {"is_lora": True, "lora_rank": rank, "model_name": answer["model_data"]["model_name"]}

    return get_model_info


def apply() -> None:
    api.list_checkpoints = list_checkpoints
    api.list_user_checkpoints = list_user_checkpoints
    for name in WITH_MODEL_ID:
        open_endpoint(name, unique_id=MODEL_ID)
    wrap("create_session", begun)
    wrap("session_heartbeat", opened_again)
    wrap("get_weights_info", of_either_kind)
    wrap("get_model_info", with_rank)
    add_route("GET", "/checkpoints", list_user_checkpoints)
    open_endpoint("list_user_checkpoints")
    add_route("GET", "/sessions", list_sessions)
    add_route("GET", "/sessions/{session_id}", get_session)
    add_route("POST", "/sessions/{session_id}/finish", finish_session)
    add_route("POST", "/client/dynamic_config", dynamic_config)
