"""The engine computes a model's requests in the order in which they came, also those that come while it looks.

It outlives a database that does not answer, and results that do not fit into it.
"""

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


# As published, then repaired; another process's lock ends when the engine says that it waits for it
STORES = """
import sqlite3, sys
sys.path.insert(0, "server")
from skyrl.tinker import types
from skyrl.tinker.db_models import FutureDB
from skyrl.tinker.engine import TinkerEngine
from skyrl.utils.log import logger
from sqlalchemy import event
from sqlmodel import Session, SQLModel, create_engine, select

engine = TinkerEngine.__new__(TinkerEngine)
engine.db_engine = create_engine("sqlite:///" + sys.argv[1])
@event.listens_for(engine.db_engine, "connect")
def limit(connection, _):
    connection.execute("PRAGMA busy_timeout=10")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
SQLModel.metadata.create_all(engine.db_engine)
with Session(engine.db_engine) as session:
    for _ in range(2):
        session.add(FutureDB(request_type="SAMPLE", model_id="", request_data={}, status="PENDING"))
    session.commit()
small, large = (types.ErrorResponse(error=text, status="failed") for text in ("small", "x" * 10_000))
other = sqlite3.connect(sys.argv[1], isolation_level=None)
def unlock(text):
    print("said:", text)
    other.execute("ROLLBACK")
logger.warning = unlock
class Looked(Exception):
    pass
def look(self):
    raise Looked
TinkerEngine.reconcile_profiler = look

def locked():
    other.execute("BEGIN EXCLUSIVE")
    engine._complete_futures({"1": small})
def asked_when_locked():
    other.execute("BEGIN EXCLUSIVE")
    engine.process_pending_requests()
def too_large():
    engine._complete_futures({"1": small, "2": large})
def all_of_them(how):
    for act in (locked, asked_when_locked, too_large):
        try:
            act()
            print(how, act.__name__, "done")
        except Exception as error:
            print(how, act.__name__, type(error).__name__)
        if other.in_transaction:
            other.execute("ROLLBACK")
all_of_them("stock")
from repairs import engine_requests, engine_turns
engine_requests.STORE_PAUSE_SEC = engine_turns.LOST_SEC = 0.01
engine_requests.apply()
engine_turns.apply()
all_of_them("repaired")
with Session(engine.db_engine) as session:
    print("stored:", *(row.result_data for row in session.exec(select(FutureDB)).all()))
"""


def test_the_engine_outlives_a_database_that_is_locked_and_a_result_that_is_too_large(
    server_env: None, tmp_path: object
) -> None:
    lines = succeed("server/.venv/bin/python", "-c", STORES, f"{tmp_path}/tinker.db").splitlines()
    assert lines[-1].startswith('stored: {"error":"small"') and "too large for the server's database" in lines[-1]
    assert [line for line in lines if line.startswith(("stock", "repaired"))] == [
        "stock locked OperationalError",
        "stock asked_when_locked Looked",  # where it would have asked
        "stock too_large DataError",
        "repaired locked done",
        "repaired asked_when_locked Looked",
        "repaired too_large done",
    ]
    said = [line for line in lines if line.startswith("said:")]
    assert "not stored yet: database is locked" in said[0] and "does not answer: database is locked" in said[1]


# The loop's pauses, in which the database is still, then gets a request, and time passes
IDLE = """
import sys
from types import SimpleNamespace
sys.path.insert(0, "server")
from skyrl.tinker.db_models import FutureDB, enable_sqlite_wal
from skyrl.tinker.engine import TinkerEngine
from sqlmodel import Session, SQLModel, create_engine
from repairs import engine_turns
engine_turns.apply()

engine = TinkerEngine.__new__(TinkerEngine)
engine.db_engine = create_engine("sqlite:///" + sys.argv[1])
enable_sqlite_wal(engine.db_engine)
SQLModel.metadata.create_all(engine.db_engine)
clock, rounds, pauses = 0.0, [], 0
class Over(Exception):
    pass
def pause(seconds):
    global clock, pauses
    pauses += 1
    if pauses == 5:
        with Session(engine.db_engine) as other:
            other.add(FutureDB(request_type="SAMPLE", model_id="", request_data={}, status="PENDING"))
            other.commit()
    if pauses == 12:
        clock += engine_turns.UNCHANGED_SEC
    if pauses == 20:
        raise Over
engine_turns.time = SimpleNamespace(sleep=pause, monotonic=lambda: clock)
TinkerEngine.process_pending_requests_once = lambda self: rounds.append(pauses)
try:
    engine.process_pending_requests()
except Over:
    print(*rounds)
"""


def test_without_a_change_of_the_database_the_engine_does_not_ask_it_again(server_env: None, tmp_path: object) -> None:
    """After its first look: when a request has come, and by the clock, for what ends by it."""
    printed = succeed("server/.venv/bin/python", "-c", IDLE, f"{tmp_path}/tinker.db")
    assert printed.splitlines()[-1] == "0 5 12"
