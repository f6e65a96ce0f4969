"""A model is not refused for want of a slot while a slot may be that of a client that has gone: it waits.

Upstream: skyrl/tinker/engine.py, TinkerEngine.find_single_requests. A killed client holds its slots until its session
has timed out, and is looked for once a minute: whoever comes next is refused, though nobody uses the server.
And TinkerEngine.process_create_model: a model that waits while its own client is given up is made for nobody, and its
slot is lost until the server restarts.
Here a model waits until every client with a slot was heard of since it was asked for, at most as long as a session
lives without a heartbeat. The SDK's heartbeats come every 10 s.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import types
from skyrl.tinker.db_models import FutureDB, ModelDB, SessionDB
from skyrl.tinker.engine import TinkerEngine
from skyrl.tinker.types import RequestType
from sqlmodel import Session, col, select

stock_find = TinkerEngine.find_single_requests
stock_create = TinkerEngine.process_create_model


def may_come_free(self: Any, session: Any, request_id: str) -> bool:
    """Whether a client with a slot was not heard of since this request came."""
    asked = select(FutureDB.created_at).where(FutureDB.request_id == int(request_id)).scalar_subquery()
    holders = select(ModelDB.session_id).where(col(ModelDB.model_id).in_(list(self.backend.models)))
    silent = SessionDB.status == "active", col(SessionDB.last_heartbeat_at) < asked
    return session.exec(select(SessionDB).where(col(SessionDB.session_id).in_(holders), *silent)).first() is not None


def find_single_requests(self: Any, session: Any) -> dict[str, tuple[str, RequestType, dict]]:
    """Wraps TinkerEngine.find_single_requests: leaves out models that wait, and what is asked of them."""
    found = stock_find(self, session)
    free = self.backend.config.max_lora_adapters - 1 - len(self.backend.models)
    leaving = any(kind == RequestType.UNLOAD_MODEL and self.backend.has_model(one) for one, kind, _ in found.values())
    waiting: set[str] = set()
    for request_id, (model_id, kind, _) in found.items():
        if kind == RequestType.CREATE_MODEL:
            free -= 1
            if free < 0 and (leaving or may_come_free(self, session, request_id)):
                waiting.add(model_id)
    if waiting and not leaving:
        self.cleanup_stale_sessions()
    return {request_id: item for request_id, item in found.items() if item[0] not in waiting}


def process_create_model(self: Any, model_id: str, request_data: types.CreateModelInput) -> Any:
    """Wraps TinkerEngine.process_create_model. Raises ValueError when the client has gone meanwhile."""
    with Session(self.db_engine) as session:
        model = session.get(ModelDB, model_id)
    if model is not None and model.status == "unloaded":
        raise ValueError("the client of this model has gone")
    return stock_create(self, model_id, request_data)


def apply() -> None:
    TinkerEngine.process_create_model = process_create_model
    TinkerEngine.find_single_requests = find_single_requests
