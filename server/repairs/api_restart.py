"""What a server that was killed has left in the database and in its checkpoint folder does not outlive it.

Upstream: skyrl/tinker/api.py, lifespan takes the database as it is: a checkpoint that was being saved is "still being
created" for ever and keeps its name; a model of a client that has gone is made and holds a slot; models that are not
loaded count as if they were. A checkpoint that failed is a 500, which the SDK retries for minutes.
"""

# pyright: reportMissingImports=false
from datetime import timedelta
from pathlib import Path
from typing import Any

from skyrl.tinker import api, types
from skyrl.utils.log import logger
from sqlmodel import Session, SQLModel, col, create_engine, func, select, update

from repairs import api_left
from repairs.api_life import before_start
from repairs.api_notes import utc_now
from repairs.api_routes import Endpoint, bad_request, wrap

FOLDERS = {types.CheckpointType.TRAINING: "", types.CheckpointType.SAMPLER: "sampler_weights"}
LOST = "the server stopped before it was saved"
GONE = types.ErrorResponse(error="the client of this model has gone", status="failed").model_dump_json()


def settle() -> None:
    """Before the engine looks for work."""
    config = api.app.state.engine_config
    engine = create_engine(config.database_url)
    SQLModel.metadata.create_all(engine)
    with Session(engine) as session:
        settle_checkpoints(session)
        settle_models(session, config.session_timeout_sec)
        api_left.set_aside(session)
        session.commit()
        clear_files(session, config.checkpoints_base)
    engine.dispose()


def settle_checkpoints(session: Session) -> None:
    pending = update(api.CheckpointDB).where(col(api.CheckpointDB.status) == api.CheckpointStatus.PENDING)
    session.exec(pending.values(status=api.CheckpointStatus.FAILED, error_message=LOST, completed_at=utc_now()))


def clear_files(session: Session, base: Any) -> None:
    """Takes away files in known models' folders that belong to no saved checkpoint: of saves and deletions cut short.

    Folders of models that the database does not know are left alone: a database may have been lost by mistake.
    """
    if not isinstance(base, Path):
        return
    saved = select(api.CheckpointDB).where(api.CheckpointDB.status == api.CheckpointStatus.COMPLETED)
    listed = {(row.model_id, row.checkpoint_id, row.checkpoint_type) for row in session.exec(saved).all()}
    for model_id in session.exec(select(api.ModelDB.model_id)).all():
        for kind, folder in FOLDERS.items():
            for file in (base / model_id / folder).glob("*"):
                name = file.name.removesuffix(".tar.gz")
                if file.name != FOLDERS[types.CheckpointType.SAMPLER] and (model_id, name, kind) not in listed:
                    logger.info(f"Removing {file}, which belongs to no saved checkpoint")
                    api.delete_checkpoint_file(file)


def settle_models(session: Session, timeout_sec: float) -> None:
    """Fails what would make a model for nobody; no model is loaded now but those that are still to be made."""
    last_seen = func.coalesce(api.SessionDB.last_heartbeat_at, api.SessionDB.created_at)
    over = select(api.SessionDB.session_id).where(last_seen < utc_now() - timedelta(seconds=max(timeout_sec, 0)))
    of_nobody = select(api.ModelDB.model_id).where(col(api.ModelDB.session_id).in_(over))
    request = api.FutureDB
    waiting = (request.status == api.RequestStatus.PENDING, request.request_type == types.RequestType.CREATE_MODEL)
    failed = {"status": api.RequestStatus.FAILED, "result_data": GONE, "completed_at": utc_now()}
    session.exec(update(request).where(*waiting, col(request.model_id).in_(of_nobody)).values(**failed))
    to_be_made = select(request.model_id).where(*waiting)
    session.exec(update(api.ModelDB).where(col(api.ModelDB.model_id).not_in(to_be_made)).values(status="unloaded"))


def final(stock: Endpoint) -> Endpoint:
    async def validate_checkpoint(*args: Any, **named: Any) -> Any:
        try:
            return await stock(*args, **named)
        except api.HTTPException as error:
            raise bad_request(error.detail, 400 if error.status_code == 500 else error.status_code) from error

    return validate_checkpoint


def apply() -> None:
    wrap("validate_checkpoint", final)
    before_start(settle)
