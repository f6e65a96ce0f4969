"""A task and its work, by which causes are judged in unit tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from harbortrainer.docker.integrity.asked import Asked, Footprint
from harbortrainer.docker.integrity.cause import Causes, Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.watch import Process, Seen, WatchProgram

BLOB, OTHER = "ab/" + "0123456789" * 3, "cd/" + "f" * 38
SOLUTION = Footprint(
    paths=frozenset({"/usr/bin/jq", "/app/out", f"/app/.git/objects/{BLOB}", f"/cache/{'a' * 64}"}),
    made=frozenset({"/opt/tool"}),
    ports=frozenset({80}),
    processes=frozenset({"redis"}),
)
FILE, WORK = FileChange("/usr/x", ChangeKind.ADDED), FileChange("/app/out", ChangeKind.ADDED)
LOG, SCRATCH = FileChange("/var/log/x", ChangeKind.ADDED), FileChange("/tmp/x", ChangeKind.ADDED)
GONE = FileChange("/usr/y", ChangeKind.REMOVED)
PLAIN = ("/usr/x", "/app/out", "/tmp/x")
RUNS_WORK = WatchProgram(5, "/app", ("bash", "-e", "out"))
TEST = WatchProgram(0, "/", ("bash", "/tests/test.sh"))
ASKS = "Write /app/out by the data in /srv/data; see /usr/bin and ~/notes/a.txt."


def judged(
    path: str,
    *,
    solution: Footprint | None = SOLUTION,
    instruction: str = "",
    program: WatchProgram = RUNS_WORK,
    first: Sequence[str] = ("/tests/test.sh", "/app/out"),
    kind: ChangeKind = ChangeKind.ADDED,
    plain: bool = True,
    **facts: Any,
) -> Causes:
    """A change that process 9 opened after `first`, of which it opened /app/out, and its parent the tests."""
    opened = {one: place for place, one in enumerate((*first, path))}
    seen = Seen(opened, readers={"/tests/test.sh": (5,), "/app/out": (9,), path: (9,)}, programs={5: TEST, 9: program})
    changed = Changed((FileChange(path, kind), WORK), {*PLAIN, path} if plain else PLAIN, **facts)
    return causes_of(changed, seen, Asked(solution, instruction, "/app"))


def found(opened: Mapping[str, int] | None, *changes: FileChange, processes: tuple[Process, ...] = ()) -> Causes:
    return causes_of(Changed(changes, PLAIN), Seen(opened, processes=processes), Asked(SOLUTION, "", "/app"))
