"""The engine computes a model's requests in the order in which they came, also those that come while it looks."""

import pytest

from tests.conftest import succeed

# A pass and its step arrive between two of the engine's queries: right after it has looked for passes.
RACE = """
import sys
from types import SimpleNamespace
sys.path.insert(0, "server")
from skyrl.tinker import types
from skyrl.tinker.db_models import FutureDB
from skyrl.tinker.engine import TinkerEngine
from sqlmodel import Session, SQLModel, create_engine

arrive = []
stock = TinkerEngine.find_batchable_model_passes
def find(self, session, kind):
    found = stock(self, session, kind)
    for late in arrive[:]:
        arrive.remove(late)
        with Session(self.db_engine) as other:
            data = {"data": [], "loss_fn": "cross_entropy"}
            other.add(FutureDB(request_type=late, model_id="m", request_data=data, status="pending"))
            other.commit()
    return found
TinkerEngine.find_batchable_model_passes = find
if sys.argv[2] == "repaired":
    from repairs import engine_turns
    engine_turns.apply()

taken = []
engine = TinkerEngine.__new__(TinkerEngine)
engine.db_engine = create_engine("sqlite:///" + sys.argv[1])
SQLModel.metadata.create_all(engine.db_engine)
engine.config = SimpleNamespace(session_cleanup_interval_sec=-1, session_timeout_sec=-1, backend="none")
engine._continuous_sampling, engine._profiler_cfg, engine._last_cleanup_time, engine.trained = False, None, 0.0, False
TinkerEngine.reconcile_profiler = lambda self: None
def done(requests, kind):
    with Session(engine.db_engine) as session:
        for key in requests:
            taken.append(kind)
            row = session.get(FutureDB, int(key))
            row.status = "completed"
            session.add(row)
        session.commit()
engine.process_batch_requests = lambda requests, _processor, name, per_model=False: done(requests, name)
engine.process_single_requests = lambda requests: done(requests, "step")
arrive += [types.RequestType.FORWARD_BACKWARD, types.RequestType.OPTIM_STEP]
for _ in range(3):
    engine.process_pending_requests_once()
print(*taken)
"""


@pytest.mark.parametrize(
    ("server", "order"), [("repaired", "forward_backward step"), ("stock", "step forward_backward")]
)
def test_a_step_waits_for_the_pass_that_was_sent_before_it(
    server: str, order: str, server_env: None, tmp_path: object
) -> None:
    printed = succeed("server/.venv/bin/python", "-c", RACE, f"{tmp_path}/tinker.db", server)
    assert printed.strip().splitlines()[-1] == order
