"""Checkpoints can be published and unpublished, and are listed as such.

Upstream: skyrl/tinker/api.py has no such routes: 405. On a private server whoever has the key can load every checkpoint
anyway; to publish one says so, and changes nothing else.
"""

# pyright: reportMissingImports=false
from typing import Any

from sqlmodel.ext.asyncio.session import AsyncSession

from repairs.api_notes import Published
from repairs.api_routes import Endpoint, add_route, wrap
from repairs.api_ttl import key_of, known
from repairs.sdk_rest import OPEN_SESSION

PLACE = "/training_runs/{unique_id}/checkpoints/{checkpoint_path:path}/publish"


async def publish(unique_id: str, checkpoint_path: str, session: AsyncSession = OPEN_SESSION) -> None:
    """Also twice: a request whose answer was lost is sent again."""
    model_id, checkpoint_id, kind = await known(session, unique_id, checkpoint_path)
    await session.merge(Published(model_id=model_id, checkpoint_id=checkpoint_id, checkpoint_type=kind))
    await session.commit()


async def unpublish(unique_id: str, checkpoint_path: str, session: AsyncSession = OPEN_SESSION) -> None:
    if (public := await session.get(Published, await known(session, unique_id, checkpoint_path))) is not None:
        await session.delete(public)
        await session.commit()


def with_public(stock: Endpoint) -> Endpoint:
    async def list_checkpoints(session: AsyncSession, **others: Any) -> dict[str, Any]:
        answer = await stock(session=session, **others)
        rows = [
            one | {"public": await session.get(Published, key_of(one)) is not None} for one in answer["checkpoints"]
        ]
        return answer | {"checkpoints": rows}

    return list_checkpoints


def apply() -> None:
    for name in ("list_checkpoints", "list_user_checkpoints"):
        wrap(name, with_public)
    add_route("POST", PLACE, publish)
    add_route("DELETE", PLACE, unpublish)
