"""What our server remembers of checkpoints and models beside skyrl's rows, in tables of its own.

skyrl's tables keep their form, so a database can go from its server to ours and back.
"""

# pyright: reportMissingImports=false
import asyncio
from datetime import UTC, datetime
from typing import Any

from skyrl.tinker import api, types
from sqlmodel import JSON, Field, SQLModel, col, select
from sqlmodel.ext.asyncio.session import AsyncSession

Key = tuple[str, str, types.CheckpointType]  # as CheckpointDB's: model, name, kind


class CheckpointNote(SQLModel, table=True):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
    __tablename__ = "checkpoint_notes"  # pyright: ignore[reportAssignmentType]

    model_id: str = Field(primary_key=True)
    checkpoint_id: str = Field(primary_key=True)
    checkpoint_type: types.CheckpointType = Field(primary_key=True)
    expires_at: datetime | None = Field(default=None, index=True)
    session_id: str | None = Field(default=None, index=True)  # of a sampler that ends with its session
    user_metadata: dict[str, str] | None = Field(default=None, sa_type=JSON)


class Published(SQLModel, table=True):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
    """A checkpoint that its owner has published."""

    __tablename__ = "published_checkpoints"  # pyright: ignore[reportAssignmentType]

    model_id: str = Field(primary_key=True)
    checkpoint_id: str = Field(primary_key=True)
    checkpoint_type: types.CheckpointType = Field(primary_key=True)


class ModelNote(SQLModel, table=True):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
    """What a client said of a model that it made."""

    __tablename__ = "model_notes"  # pyright: ignore[reportAssignmentType]

    model_id: str = Field(primary_key=True)
    user_metadata: dict[str, str] | None = Field(default=None, sa_type=JSON)


def utc_now() -> datetime:
    return datetime.now(UTC)


async def note(session: AsyncSession, key: Key, **values: Any) -> None:
    """Sets some of a checkpoint's values; the caller commits."""
    kept = await session.get(CheckpointNote, key)
    if kept is None:
        kept = CheckpointNote(model_id=key[0], checkpoint_id=key[1], checkpoint_type=key[2])
    for name, value in values.items():
        setattr(kept, name, value)
    session.add(kept)


async def forget(session: AsyncSession, key: Key) -> None:
    """Deletes a checkpoint, its note and its file; commits. One that is being saved is left alone."""
    row, *kept = [await session.get(table, key) for table in (api.CheckpointDB, CheckpointNote, Published)]
    if row is not None and row.status == api.CheckpointStatus.PENDING:
        return
    for gone in (row, *kept):
        if gone is not None:
            await session.delete(gone)
    await session.commit()
    api.app.state.validated_sampler_checkpoints.discard(key[:2])
    request: Any = FakeRequest
    file = api.checkpoint_file_path(request, *key)
    await asyncio.to_thread(api.delete_checkpoint_file, file)
    file.with_name(f"{file.name}.probe").unlink(missing_ok=True)  # skyrl leaves one beside every sampler checkpoint


async def forget_where(session: AsyncSession, *conditions: Any) -> None:
    """Forgets the checkpoints whose notes fulfil these. Their keys are read first: each commit expires the notes."""
    fields = CheckpointNote.model_id, CheckpointNote.checkpoint_id, CheckpointNote.checkpoint_type
    for key in (await session.exec(select(*map(col, fields)).where(*conditions))).all():
        await forget(session, tuple(key))


class FakeRequest:
    """As much of a request as skyrl's functions read."""

    app = api.app
