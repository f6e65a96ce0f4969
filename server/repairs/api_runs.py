"""What a client says of a model that it makes is kept, and told to who asks for its training run.

Upstream: skyrl/tinker/api.py, CreateModelRequest and LoadWeightsRequest drop user_metadata; get_training_run and
list_training_runs answer None.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import api
from sqlmodel.ext.asyncio.session import AsyncSession

from repairs import api_requests
from repairs.api_notes import ModelNote
from repairs.api_routes import Endpoint, wrap
from repairs.sdk_models import model_name


def noting(stock: Endpoint) -> Endpoint:
    async def make(request: Any, session: AsyncSession, **others: Any) -> Any:
        """Wraps create_model, and load_weights where it makes a model; a request sent again changes nothing."""
        made = await stock(request=request, session=session, **others)
        if request.user_metadata and request.model_seq_id is not None:
            said = {name: str(value) for name, value in request.user_metadata.items()}
            model_id = model_name(request.session_id, request.model_seq_id)
            await session.merge(ModelNote(model_id=model_id, user_metadata=said))
            await session.commit()
        return made

    return make


async def with_note(run: api.TrainingRun, session: AsyncSession) -> api.TrainingRun:
    kept = await session.get(ModelNote, run.training_run_id)
    return run.model_copy(update={"user_metadata": kept and kept.user_metadata})


def telling(stock: Endpoint) -> Endpoint:
    async def get_training_run(session: AsyncSession, **others: Any) -> api.TrainingRun:
        return await with_note(await stock(session=session, **others), session)

    return get_training_run


def telling_all(stock: Endpoint) -> Endpoint:
    async def list_training_runs(session: AsyncSession, **others: Any) -> api.TrainingRunsResponse:
        found = await stock(session=session, **others)
        return found.model_copy(
            update={"training_runs": [await with_note(run, session) for run in found.training_runs]}
        )

    return list_training_runs


def apply() -> None:
    api_requests.apply()
    wrap("create_model", noting)
    wrap("load_weights", noting)
    wrap("get_training_run", telling)
    wrap("list_training_runs", telling_all)
