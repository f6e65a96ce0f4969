"""What all clients wait for is committed together; a statement that fails is no failure of those beside it."""

from pathlib import Path

from tests.support.engine_programs import printed

ROWS = """
import asyncio, sys
from datetime import UTC, datetime
from skyrl.tinker import types
from skyrl.tinker.db_models import FutureDB, RequestStatus
from sqlalchemy import event
from sqlmodel import Session, SQLModel, col, create_engine, func, insert, select, update
from repairs.rows import Rows

NOW = datetime.now(UTC)
url = "sqlite:///" + sys.argv[1]
other = create_engine(url)
SQLModel.metadata.create_all(other)
def added(number):
    state = {"request_type": types.RequestType.EXTERNAL, "status": RequestStatus.PENDING, "created_at": NOW}
    return insert(FutureDB).values(**state, model_id="m", seq_id=number, request_data={"n": number})
def answered(key):
    row = update(FutureDB).where(col(FutureDB.request_id) == key)
    return row.values(result_data="{}", status=RequestStatus.COMPLETED)

async def write():
    rows, commits = Rows(url), []
    event.listen(rows._engine, "commit", commits.append)
    keys = await asyncio.gather(*(rows.write(added(number)) for number in range(50)))
    print(">", len(set(keys)), len(commits))
    ends = await asyncio.gather(*map(rows.write, (added(60), added(0), answered(keys[7]))), return_exceptions=True)
    print(">", *(type(end).__name__ for end in ends))
    left = asyncio.create_task(rows.write(added(61)))
    await asyncio.sleep(0)
    left.cancel()
    print(">", await rows.write(answered(keys[8])))
    await rows.close()
asyncio.run(write())
with Session(other) as session:
    rows = session.exec(select(FutureDB)).all()
    print(">", len(rows), [row.request_data["n"] for row in rows if row.status == RequestStatus.COMPLETED])
"""


def test_they_are_committed_together_and_fail_alone(server_env: None, tmp_path: Path) -> None:
    said = [line[2:] for line in printed(ROWS, f"{tmp_path}/tinker.db") if line.startswith(">")]
    assert said == ["50 1", "int IntegrityError NoneType", "None", "52 [7, 8]"]
