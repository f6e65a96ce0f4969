"""Samples that a server left unanswered are computed when their clients ask for them again, and not for nobody.

Upstream: skyrl/tinker/engine.py computes at its start whatever waits in the database, also of clients that are gone:
one prompt of 65,536 tokens kept everybody waiting for 47 s.
A client that is there asks again within seconds of the start. What nobody asks for ends with the sessions' time-out.
"""

# pyright: reportMissingImports=false
import time
from typing import Any

from skyrl.tinker import api, types
from sqlmodel import Session, col, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs.api_life import now_and_then
from repairs.api_load import read_load
from repairs.api_notes import utc_now
from repairs.api_routes import Endpoint, wrap

NOBODY = types.ErrorResponse(error="the client of this request has gone", status="failed").model_dump_json()
unclaimed: set[str] = set()  # requests
since = 0.0  # when the engine was first seen at work


def set_aside(session: Session) -> None:
    """Before the engine looks for work, which leaves rows of type EXTERNAL alone."""
    request, kinds = api.FutureDB, (types.RequestType.SAMPLE, types.RequestType.EXTERNAL)
    waiting = (col(request.request_type).in_(kinds), request.status == api.RequestStatus.PENDING)
    session.exec(update(request).where(*waiting).values(request_type=types.RequestType.EXTERNAL))
    unclaimed.update(map(str, session.exec(select(request.request_id).where(*waiting)).all()))


def claimed(stock: Endpoint) -> Endpoint:
    async def retrieve_future(request: Any, **others: Any) -> Any:
        if request.request_id in unclaimed:
            async with api.app.state.db_write_lock, AsyncSession(api.app.state.db_engine) as session:
                if request.request_id in unclaimed:
                    await release(session, await session.get(api.FutureDB, int(request.request_id)))
                    unclaimed.discard(request.request_id)
        return await stock(request=request, **others)

    return retrieve_future


async def release(session: AsyncSession, row: Any) -> None:
    """To vLLM what vllm_requests gives it, the rest to the engine."""
    if api.app.state.vllm is not None:
        from repairs import vllm_requests

        data = vllm_requests.SampleInput.model_validate(row.request_data)
        if not vllm_requests.only_scores(data):
            assert vllm_requests.sampler is not None
            vllm_requests.sampler.spawn(row.request_id, row.model_id or "", data)
            return
    row.request_type = types.RequestType.SAMPLE
    session.add(row)
    await session.commit()


async def give_up(session: AsyncSession) -> None:
    global since
    since = since or (time.monotonic() if read_load() else 0.0)
    if not since or time.monotonic() - since < api.app.state.engine_config.session_timeout_sec:
        return
    request, failed = api.FutureDB, {"status": api.RequestStatus.FAILED, "result_data": NOBODY}
    async with api.app.state.db_write_lock:
        for one in unclaimed:
            row = update(request).where(col(request.request_id) == int(one))
            await session.exec(row.values(**failed, completed_at=utc_now()))
        await session.commit()
        unclaimed.clear()


def apply() -> None:
    wrap("retrieve_future", claimed)
    now_and_then(give_up)
