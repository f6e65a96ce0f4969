"""Saving twice under one name is refused at once, and a request sent again is the same request.

Upstream: skyrl/tinker/api.py, create_checkpoint and create_future answer 409, which the SDK retries for five minutes;
save_weights, save_weights_for_sampler and load_weights drop seq_id, so that a request whose answer was lost and that
the SDK sends again meets its own checkpoint. `overwrite` is dropped too.
"""

# pyright: reportMissingImports=false
from typing import Any
from uuid import uuid4

from fastapi import Request
from skyrl.tinker import api, types
from skyrl.tinker.types import CheckpointType, RequestType
from sqlmodel import select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs import api_requests
from repairs.api_routes import Endpoint, bad_request, wrap
from repairs.sdk_models import promise

NOT_LOADED = ("unloading", "unloaded")


async def sent_before(session: AsyncSession, model_id: str, seq_id: int | None) -> Any:
    """The request of that number, or None."""
    if seq_id is None:
        return None
    statement = select(api.FutureDB).where(api.FutureDB.model_id == model_id, api.FutureDB.seq_id == seq_id)
    return (await session.exec(statement)).first()


def same(known: Any, kind: RequestType, **values: Any) -> api.FutureResponse:
    """The promise of a request sent before. Raises 400 when that was another one."""
    if known.request_type != kind or any(known.request_data.get(name) != value for name, value in values.items()):
        raise bad_request(f"seq_id {known.seq_id}: another request of this model has this number")
    return promise(known.request_id)


async def make_room(session: AsyncSession, key: tuple[str, str, CheckpointType], overwrite: bool = False) -> None:
    """Takes away the row that a new checkpoint replaces. Raises 400: the name is taken, or the model not loaded."""
    model_id, name, _ = key
    if (await api.get_model(session, model_id)).status in NOT_LOADED:
        raise bad_request(f"model {model_id} is not loaded: unloaded, its session timed out, or the server restarted")
    row = await session.get(api.CheckpointDB, key)
    if row is None:
        return
    if row.status == api.CheckpointStatus.COMPLETED and not overwrite:
        raise bad_request(f"checkpoint {name} exists for model {model_id}; delete it or take another name")
    if row.status == api.CheckpointStatus.PENDING:
        raise bad_request(f"checkpoint {name} exists for model {model_id}: it is being saved")
    await session.delete(row)
    await session.flush()


async def save_weights(request: api_requests.SaveWeightsRequest, session: AsyncSession) -> api.FutureResponse:
    """Replaces upstream's."""
    known = await sent_before(session, request.model_id, request.seq_id)
    if known is not None:
        return same(known, RequestType.SAVE_WEIGHTS, path=request.path)
    await make_room(session, (request.model_id, request.path, CheckpointType.TRAINING), request.overwrite)
    await api.create_checkpoint(session, request.model_id, request.path, CheckpointType.TRAINING)
    data = types.SaveWeightsInput(path=request.path)
    request_id = await api.create_future(session, RequestType.SAVE_WEIGHTS, request.model_id, data, request.seq_id)
    await session.commit()
    return promise(request_id)


async def save_weights_for_sampler(
    request: api_requests.SaveWeightsForSamplerRequest, session: AsyncSession
) -> api.FutureResponse:
    """Replaces upstream's."""
    if request.kind != "snapshot":
        raise bad_request(f"kind={request.kind}: only snapshot is offered by this server")
    known = await sent_before(session, request.model_id, request.seq_id)
    if known is not None:  # sent again, a sampler without a name has another sampling_session_seq_id
        named = {"path": request.path} if request.path else {}
        return same(known, RequestType.SAVE_WEIGHTS_FOR_SAMPLER, **named)
    name = sampler_name(request)
    await make_room(session, (request.model_id, name, CheckpointType.SAMPLER))
    await api.create_checkpoint(session, request.model_id, name, CheckpointType.SAMPLER)
    data = types.SaveWeightsForSamplerInput(
        path=name,
        sampling_session_seq_id=request.sampling_session_seq_id,
        seq_id=request.seq_id,
        sampling_session_id=await add_sampling_session(session, request, name),
    )
    kind = RequestType.SAVE_WEIGHTS_FOR_SAMPLER
    request_id = await api.create_future(session, kind, request.model_id, data, request.seq_id)
    await session.commit()
    return promise(request_id)


def sampler_name(request: api_requests.SaveWeightsForSamplerRequest) -> str:
    return request.path or f"ss{request.sampling_session_seq_id}_seq{request.seq_id}"


async def add_sampling_session(
    session: AsyncSession, request: api_requests.SaveWeightsForSamplerRequest, name: str
) -> str | None:
    """The sampling session of a sampler that is not saved by name."""
    if request.sampling_session_seq_id is None or request.seq_id is None:
        return None
    made = api.SamplingSessionDB(
        sampling_session_id=f"sampling_{uuid4().hex[:8]}",
        session_id=(await api.get_model(session, request.model_id)).session_id,
        sampling_session_seq_id=request.sampling_session_seq_id,
        model_path=f"tinker://{request.model_id}/sampler_weights/{name}",
    )
    session.add(made)
    return made.sampling_session_id


def once(stock: Endpoint) -> Endpoint:
    async def load_weights(request: api_requests.LoadWeightsRequest, req: Request, session: AsyncSession) -> Any:
        model_id, path = request.model_id, types.TinkerPath.parse(request.path)
        if model_id is None or request.seq_id is None or path is None:
            return await stock(request=request, req=req, session=session)
        known = await sent_before(session, model_id, request.seq_id)
        if known is not None and known.request_type == RequestType.LOAD_WEIGHTS:
            return same(known, RequestType.LOAD_WEIGHTS, checkpoint_id=path.secondary_id)
        made = await stock(request=request, req=req, session=session)
        numbered = update(api.FutureDB).where(api.FutureDB.request_id == int(made.request_id))
        await session.exec(numbered.values(seq_id=request.seq_id))
        await session.commit()
        return made

    return load_weights


def never_409(stock: Endpoint) -> Endpoint:
    async def create(*args: Any, **named: Any) -> Any:
        try:
            return await stock(*args, **named)
        except api.HTTPException as error:
            raise bad_request(error.detail, 400 if error.status_code == 409 else error.status_code) from error

    return create


def unload_once(stock: Endpoint) -> Endpoint:
    async def unload_model(request: api.UnloadModelRequest, session: AsyncSession) -> Any:
        if (await api.get_model(session, request.model_id)).status in NOT_LOADED:
            raise bad_request(f"model {request.model_id} is not loaded any more")
        return await stock(request=request, session=session)

    return unload_model


def apply() -> None:
    api_requests.apply()
    wrap("create_checkpoint", never_409)
    wrap("create_future", never_409)
    wrap("save_weights", lambda _: save_weights)
    wrap("save_weights_for_sampler", lambda _: save_weights_for_sampler)
    wrap("load_weights", once)
    wrap("unload_model", unload_once)
