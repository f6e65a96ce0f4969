"""The database does not grow for ever, nor do the samplers that nobody named.

Upstream: skyrl/tinker/api.py and engine.py keep every request and result, with all tokens and log-probabilities, and
every checkpoint of save_weights_and_get_sampling_client. Here a request that was answered longer ago than
--keep-results-sec is deleted, and earlier, oldest first, where all of them take more than --keep-results-mb; of a
loaded model a row without contents stays, because load_weights asks whether it is a model's first request, and no
seq_id must be taken twice. Samplers without a name end with their session. A session that ended as long ago goes with
its sampling clients and those of its models that have no checkpoint.
"""

# pyright: reportMissingImports=false
import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from skyrl.tinker import api, types
from sqlalchemy import text
from sqlmodel import and_, col, delete, exists, func, not_, or_, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs import api_requests
from repairs.api_life import now_and_then
from repairs.api_names import sampler_name
from repairs.api_notes import CheckpointNote, ModelNote, forget_where, note, utc_now
from repairs.api_routes import Endpoint, wrap

SAMPLES = (types.RequestType.SAMPLE, types.RequestType.EXTERNAL)
SILENT = 24  # 6 hours with the default
FETCHED_SEC = 60.0  # a client that waits for a result has it by then
GONE = types.ErrorResponse(error="the result of this request is not kept any more", status="failed").model_dump_json()


async def prune_requests(session: AsyncSession) -> None:
    request = api.FutureDB
    cutoff = max(utc_now() - timedelta(seconds=api.app.state.keep_results_sec), await cutoff_of_room(session))
    old = (col(request.status) != api.RequestStatus.PENDING, col(request.completed_at) < cutoff)
    unloaded = select(api.ModelDB.model_id).where(api.ModelDB.status == "unloaded")
    not_needed = or_(col(request.request_type).in_(SAMPLES), col(request.model_id).in_(unloaded))
    emptied = {"request_data": {}, "result_data": GONE, "status": api.RequestStatus.FAILED}
    async with api.app.state.db_write_lock:
        await session.exec(delete(request).where(*old, not_needed))
        await session.exec(update(request).where(*old, col(request.result_data) != GONE).values(**emptied))
        await session.commit()


async def cutoff_of_room(session: AsyncSession) -> datetime:
    """Where the database takes more than --keep-results-mb, requests answered before this go: the older half."""
    never, request = datetime.min.replace(tzinfo=UTC), api.FutureDB
    if await used_mb(session) <= api.app.state.keep_results_mb:
        return never
    fetched = col(request.completed_at) < utc_now() - timedelta(seconds=FETCHED_SEC)
    times = (await session.exec(select(request.completed_at).where(fetched, col(request.result_data) != GONE))).all()
    return sorted(times)[len(times) // 2].replace(tzinfo=UTC) + timedelta(microseconds=1) if times else never


async def used_mb(session: AsyncSession) -> float:
    """Of a database in a file, without what was freed in it; 0 for a server's."""
    if session.get_bind().dialect.name != "sqlite":
        return 0.0
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = [(await session.execute(text(f"PRAGMA {name}"))).scalar_one() for name in names]
    return (pages - free) * size / 2**20


async def delete_nameless(session: AsyncSession) -> None:
    """Sampler checkpoints without a name, of sessions that are over."""
    over = select(api.SessionDB.session_id).where(api.SessionDB.status != "active")
    await forget_where(session, col(CheckpointNote.session_id).in_(over))


async def prune_sessions(session: AsyncSession) -> None:
    """Sessions that ended longer ago than --keep-results-sec: their samplers, models without checkpoints, themselves.

    One that its client did not end, which may come back, is kept SILENT times as long. A model waits for its last
    request, which prune_requests deletes; a session for its last model.
    """
    over, model, sampler = api.SessionDB, api.ModelDB, api.SamplingSessionDB
    heard = func.coalesce(over.last_heartbeat_at, over.created_at)
    kept = timedelta(seconds=api.app.state.keep_results_sec)
    ends = (("finished", kept), ("expired", SILENT * kept))
    ended = or_(*(and_(over.status == status, heard < utc_now() - longer) for status, longer in ends))
    sessions = select(over.session_id).where(ended)
    of_these, named = col(model.session_id).in_(sessions), col(model.model_id)
    needed = [exists().where(col(table.model_id) == named) for table in (api.CheckpointDB, api.FutureDB)]
    gone = of_these, not_(or_(*needed))
    async with api.app.state.db_write_lock:
        theirs = col(sampler.session_id).in_(sessions)
        for sampler_id in (await session.exec(select(sampler.sampling_session_id).where(theirs))).all():
            api.app.state.sampling_model_cache.pop(sampler_id, None)
        await session.exec(delete(sampler).where(theirs))
        await session.exec(update(model).where(of_these, col(model.status) != "unloaded").values(status="unloaded"))
        models = (await session.exec(select(named).where(*gone))).all()
        await session.exec(delete(ModelNote).where(col(ModelNote.model_id).in_(select(named).where(*gone))))
        await session.exec(delete(model).where(*gone))
        await session.exec(delete(over).where(ended, ~exists().where(col(model.session_id) == col(over.session_id))))
        await session.commit()
    await asyncio.to_thread(remove_empty, api.app.state.engine_config.checkpoints_base, models)


def remove_empty(base: Any, models: Sequence[str]) -> None:
    """The folders of these models, which skyrl leaves when it deletes a checkpoint."""
    folders = [base / name / part for name in models for part in ("sampler_weights", "")]
    for folder in folders if isinstance(base, Path) else []:
        with suppress(OSError):  # never made
            folder.rmdir()


def noting_session(stock: Endpoint) -> Endpoint:
    async def save_weights_for_sampler(
        request: api_requests.SaveWeightsForSamplerRequest, session: AsyncSession
    ) -> Any:
        made = await stock(request=request, session=session)
        if not request.path:
            model = await api.get_model(session, request.model_id)
            key = (request.model_id, sampler_name(request), types.CheckpointType.SAMPLER)
            await note(session, key, session_id=model.session_id)
            await session.commit()
        return made

    return save_weights_for_sampler


def apply() -> None:
    wrap("save_weights_for_sampler", noting_session)
    now_and_then(prune_requests)
    now_and_then(delete_nameless)
    now_and_then(prune_sessions)
