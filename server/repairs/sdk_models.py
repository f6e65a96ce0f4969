"""Models as SDK 0.38 names and makes them, and promises of samples as it wants them.

Upstream: skyrl/tinker/api.py. create_model invents an id, so that a request sent again makes a second model, and the
SDK takes a model that is made by loading to be SESSION:train:N; load_weights wants a model_id, which the SDK has not
got in create_training_client_from_state; asample's promise lacks sample_sequence_ids, without which the SDK raises.
Here a model that the SDK numbers has that name, and no other, so nothing need be remembered of it.
"""

# pyright: reportMissingImports=false
import random
from typing import Any

from fastapi import Request
from skyrl.tinker import api, types
from sqlmodel import select
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs.api_requests import CreateModelRequest, LoadWeightsRequest, SampleRequest
from repairs.api_routes import Endpoint, bad_request, wrap

ALPHA = 32.0  # as api.create_model's


def model_name(session_id: str, model_seq_id: int) -> str:
    return f"{session_id}:train:{model_seq_id}"


async def add_model(
    session: AsyncSession, model_id: str, session_id: str, base_model: str, lora: types.LoraConfig
) -> int:
    """The request that makes the model, for the engine; not yet committed. Returns its id."""
    if await session.get(api.SessionDB, session_id) is None:
        raise bad_request("Session not found", 404)
    data = types.CreateModelInput(lora_config=lora)
    request_id = await api.create_future(session, types.RequestType.CREATE_MODEL, model_id, data)
    session.add(
        api.ModelDB(
            model_id=model_id,
            base_model=base_model,
            lora_config=lora.model_dump(),
            status="created",
            request_id=request_id,
            session_id=session_id,
        )
    )
    return request_id


def with_own_id(stock: Endpoint) -> Endpoint:
    async def create_model(request: CreateModelRequest, session: AsyncSession) -> api.CreateModelResponse:
        if request.model_seq_id is None:
            return await stock(request=request, session=session)
        model_id = model_name(request.session_id, request.model_seq_id)
        known = await session.get(api.ModelDB, model_id)
        if known is not None:  # the answer to an earlier try was lost
            request_id = known.request_id
        else:
            seed = request.lora_config.seed
            seed = random.randint(0, 2**31 - 1) if seed is None else seed
            lora = types.LoraConfig(rank=request.lora_config.rank, alpha=ALPHA, seed=seed)
            request_id = await add_model(session, model_id, request.session_id, request.base_model, lora)
            await session.commit()
        return api.CreateModelResponse(
            model_id=model_id,
            base_model=request.base_model,
            lora_config=request.lora_config,
            request_id=str(request_id),
        )

    return create_model


def with_model_of_its_own(stock: Endpoint) -> Endpoint:
    async def load_weights(request: LoadWeightsRequest, req: Request, session: AsyncSession) -> api.FutureResponse:
        if request.session_id is None or request.model_seq_id is None:
            return await stock(request=request, req=req, session=session)
        model_id = model_name(request.session_id, request.model_seq_id)
        if await session.get(api.ModelDB, model_id) is not None:
            return promise(await load_of(session, model_id))
        path = types.TinkerPath.parse(request.path)
        if path is None or path.kind != "weights":
            raise bad_request(f"path {request.path!r}: not tinker://MODEL/weights/NAME")
        source = await api.get_model(session, path.primary_id)
        # before the model's request is written: sqlite commits that one even when this is refused later
        await api.validate_checkpoint(req, path.primary_id, path.secondary_id, types.CheckpointType.TRAINING, session)
        lora = types.LoraConfig.model_validate(source.lora_config)
        await add_model(session, model_id, request.session_id, source.base_model, lora)
        loading = request.model_copy(update={"model_id": model_id})
        return await stock(request=loading, req=req, session=session)

    return load_weights


async def load_of(session: AsyncSession, model_id: str) -> int:
    statement = select(api.FutureDB.request_id).where(
        api.FutureDB.model_id == model_id, api.FutureDB.request_type == types.RequestType.LOAD_WEIGHTS
    )
    request_id = (await session.exec(statement)).first()
    if request_id is None:
        raise bad_request(f"model {model_id} exists and was not made by loading")
    return request_id


def promise(request_id: int) -> api.FutureResponse:
    return api.FutureResponse(future_id=str(request_id), request_id=str(request_id))


def with_sequence_ids(stock: Endpoint) -> Endpoint:
    async def asample(request: SampleRequest, req: Request, session: AsyncSession) -> dict[str, Any]:
        answer: api.FutureResponse = await stock(request=request, req=req, session=session)
        ids = [f"sequence-{answer.request_id}-{index}" for index in range(request.num_samples)]
        return answer.model_dump() | {"sample_sequence_ids": ids}

    return asample


def apply() -> None:
    wrap("create_model", with_own_id)
    wrap("load_weights", with_model_of_its_own)
    wrap("asample", with_sequence_ids)
