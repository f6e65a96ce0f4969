"""The engine computes a model's requests in the order in which they came, also those that come while it looks.

It outlives a database that does not answer, and results that do not fit into it.
"""

from tests.support.engine_programs import printed

# A pass and its step arrive between two of the engine's queries: right after it has looked for passes.
RACE = """
import sys
from types import SimpleNamespace
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
TinkerEngine.reconcile_profiler = lambda self: None

def order(name):
    taken = []
    engine = TinkerEngine.__new__(TinkerEngine)
    engine.db_engine = create_engine(f"sqlite:///{sys.argv[1]}/{name}.db")
    SQLModel.metadata.create_all(engine.db_engine)
    engine.config = SimpleNamespace(session_cleanup_interval_sec=-1, session_timeout_sec=-1, backend="none")
    engine._continuous_sampling, engine._profiler_cfg = False, None
    engine._last_cleanup_time, engine.trained = 0.0, False
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
    arrive.extend([types.RequestType.FORWARD_BACKWARD, types.RequestType.OPTIM_STEP])
    for _ in range(3):
        engine.process_pending_requests_once()
    print(name, *taken)

order("stock")
from repairs import engine_turns
engine_turns.apply()
order("repaired")
"""


def test_a_step_waits_for_the_pass_that_was_sent_before_it(server_env: None, tmp_path: object) -> None:
    """As published, it does not."""
    lines = printed(RACE, f"{tmp_path}")
    assert lines[-2:] == ["stock step forward_backward", "repaired forward_backward step"]


# As published, then repaired; another process's lock ends when the engine says that it waits for it
STORES = """
import sqlite3, sys
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
    lines = printed(STORES, f"{tmp_path}/tinker.db")
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
    lines = printed(IDLE, f"{tmp_path}/tinker.db")
    assert lines[-1] == "0 5 12"


# Rounds of the API's poll: a client comes, nothing changes, its result is stored, a client of a result that was there
POLL = """
import asyncio, sys
from types import SimpleNamespace
from skyrl.tinker import api
from skyrl.tinker.db_models import FutureDB, enable_sqlite_wal, get_async_database_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import Session, SQLModel, create_engine
from repairs import api_futures
api_futures.apply()

stores = create_engine("sqlite:///" + sys.argv[1])
enable_sqlite_wal(stores)
SQLModel.metadata.create_all(stores)
def store(number, status):
    with Session(stores) as session:
        kind = {"request_type": "SAMPLE", "model_id": "", "request_data": {}, "result_data": "{}"}
        session.merge(FutureDB(request_id=number, status=status, **kind))
        session.commit()
store(1, "PENDING")
store(2, "COMPLETED")
clock, asked, rounds, waiters = 0.0, [], 0, {}
api_futures.time = SimpleNamespace(monotonic=lambda: clock)
class Counted(api.AsyncSession):
    def __init__(self, engine):
        asked.append(rounds)
        super().__init__(engine)
api.AsyncSession = Counted
class Over(Exception):
    pass
async def pause(seconds):
    global clock, rounds
    rounds += 1
    if rounds == 3:
        waiters[1] = {asyncio.get_running_loop().create_future()}
    if rounds == 6:
        store(1, "COMPLETED")
    if rounds == 9:
        waiters[2] = {asyncio.get_running_loop().create_future()}
    if rounds == 12:
        store(3, "PENDING")
        waiters[3] = {asyncio.get_running_loop().create_future()}
    if rounds == 15:
        clock += 2 * api_futures.UNCHANGED_SEC
    if rounds == 17:
        api_futures.OWN.add(4)
        waiters[4] = {asyncio.get_running_loop().create_future()}
    if rounds == 19:
        (waiter,) = waiters[4]
        api_futures.answers(4, ("COMPLETED", "EXTERNAL", "{}"))
        assert waiter.result()[2] == "{}" and not api_futures.OWN
    if rounds == 20:
        raise Over
api.app.state.future_waiters = waiters
api.asyncio = SimpleNamespace(sleep=pause, CancelledError=asyncio.CancelledError)
async def polls():
    engine = create_async_engine(get_async_database_url("sqlite:///" + sys.argv[1]))
    try:
        await api.poll_futures(engine, waiters)
    except Over:
        print(*asked, *waiters)
    await engine.dispose()
asyncio.run(polls())
"""


def test_results_are_asked_for_after_a_change_or_for_a_new_client(server_env: None, tmp_path: object) -> None:
    """And now and then, for a query that failed; the client of a request that is not answered still waits.

    What the API's own process answers is never asked for.
    """
    lines = printed(POLL, f"{tmp_path}/tinker.db")
    assert lines[-1] == "3 6 9 12 15 3"
