"""What the watcher's answers mean, and that none of them breaks a verification."""

import json
import logging
import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from harbortrainer.docker.box.first_process import note
from harbortrainer.docker.integrity import watch
from harbortrainer.docker.integrity.living import Process as Looked
from harbortrainer.docker.integrity.living import living
from harbortrainer.docker.integrity.watch import Process, Seen, WatchProgram, _parsed

TOLD: dict[str, Any] = {
    "readers": {"/a": [7, 8], "/b": [8]}, "programs": {
        "7": {"parent": 1, "cwd": "/app", "words": ["sh", "-c", "x"], "ran": ["/a"]}
    },
    "written": ["/b"], "tampered": ["/tests/x"], "overflow": False, "unseen": False,
    "late": ["/b"], "moved": True, "made": [9], "changed": True, "sockets": ["tcp 80"],
    "passed": ["/d"], "links": 2, "left": ["/dev/x"], "altered": ["/tests/y"],
    "writers": {"/tests/w": [3]},
    "processes": [{"name": "p", "ports": [80], "ran": False, "writes": ["/c"], "pid": 5, "sockets": [], "busy": False,
                   "holds": True}],
}  # fmt: skip
SEEN = Seen(
    {"/a": 0, "/b": 1},
    frozenset({"/b"}),
    ("/tests/x",),
    (Process("p", (80,), False, ("/c",), 5, holds=True),),
    {"/a": (7, 8), "/b": (8,)},
    {7: WatchProgram(1, "/app", ("sh", "-c", "x"), ("/a",))},
    late=frozenset({"/b"}),
    moved=True,
    made=frozenset({9}),
    changed=True,
    sockets=("tcp 80",),
    passed=frozenset({"/d"}),
    links=2,
    left=frozenset({"/dev/x"}),
    altered=("/tests/y",),
    writers={"/tests/w": (3,)},
)
PUT = "/logs/verifier/x"  # before verification began


class Fake:
    """A watcher that answers each request as a function says."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None], first: bytes = b'{"ready": true}\n') -> None:
        self._answer, self._said = answer, queue.Queue[bytes | None]()
        self._said.put(first)

    def send(self, line: bytes) -> None:
        self._said.put(self._answer(json.loads(line)))

    def chunks(self) -> Iterator[bytes]:
        while (data := self._said.get()) is not None:
            yield data

    def close(self) -> None:
        self._said.put(None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Programs that are started one after the other, on a daemon of this test."""
    fakes: list[Fake] = []
    watch._told.clear()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{secrets.token_hex()}")
    monkeypatch.setattr(watch, "start", lambda module, run_id: fakes.pop(0))
    note("watched", 1, 1)
    return fakes


def line(answer: object) -> bytes:
    return json.dumps(answer).encode() + b"\n"


async def verified() -> Seen:
    async with watch.watching("watched", "r", (), {"/tests/x"}.__contains__) as sight:
        pass
    assert sight.seen.opened is None or sight.seen.tampered[0] == PUT
    return replace(sight.seen, tampered=sight.seen.tampered[1:])


def honest(request: dict[str, Any]) -> bytes:
    if "begin" in request:
        return line({"id": request["begin"], "own": ["/tests/x", PUT]})
    return line({"id": request["end"], "seen": TOLD})


async def test_what_the_watcher_saw_is_read(started: list[Fake]) -> None:
    started += [Fake(honest)]
    assert await verified() == SEEN
    assert await verified() == SEEN  # by the same program
    assert _parsed(TOLD | {"overflow": True}).opened is None
    assert _parsed(TOLD | {"unseen": True}).unseen_memory


@pytest.mark.parametrize(
    "found",
    [None, [], 5, "x", {}]
    + [{name: value for name, value in TOLD.items() if name != left} for left in TOLD]
    + [TOLD | {name: 5} for name in TOLD if name not in ("overflow", "unseen", "moved", "changed", "links")]
    + [TOLD | {"processes": [{"name": "p", "ports": ["x"], "ran": 1, "writes": [], "pid": 1}]}]
    + [TOLD | {"processes": [{}]}, TOLD | {"processes": [1]}, TOLD | {"programs": {"x": {}}}]
    + [TOLD | {"readers": {"/a": ["x"]}}, TOLD | {"programs": {"1": 5}}],
)
def test_a_malformed_answer_is_a_value_error(found: object) -> None:
    with pytest.raises(ValueError):
        _parsed(found)


@pytest.mark.parametrize("end", [b"{}\n", b"rubbish\n", b"[1]\n", b"\xff\xfe\n", b'{"id": {}}\n', None])
async def test_a_watcher_that_answers_rubbish_leaves_the_verification_unknown(
    started: list[Fake], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: bytes | None
) -> None:
    monkeypatch.setattr(watch, "END_SEC", 0.05)
    started += [Fake(lambda request: honest(request) if "begin" in request else end)]
    assert await verified() == Seen(unseen_memory=True)
    assert "verifications cannot be watched" in caplog.text


@pytest.mark.parametrize("answer", [{"seen": None}, {"seen": {}}, {"failed": "no"}, {}])
async def test_an_answer_without_its_content_leaves_it_unknown(started: list[Fake], answer: dict[str, object]) -> None:
    started += [Fake(lambda request: honest(request) if "begin" in request else line({"id": request["end"]} | answer))]
    assert await verified() == Seen(unseen_memory=True)


async def test_a_watcher_that_ended_is_started_again(started: list[Fake]) -> None:
    started += [Fake(lambda request: honest(request) if "begin" in request else None), Fake(honest)]
    assert [await verified(), await verified()] == [Seen(unseen_memory=True), SEEN]


async def test_a_watcher_that_does_not_start_is_said_once_and_not_tried_each_time(
    started: list[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    started += [Fake(honest, b"chroot: no such file\n"), Fake(honest)]
    started[0].close()
    assert [await verified(), await verified()] == [Seen(unseen_memory=True)] * 2
    (record,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "chroot: no such file" in record.getMessage()
    assert len(started) == 1


async def test_memory_that_cannot_be_watched_is_said_once(
    started: list[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    started += [Fake(honest, line({"ready": True, "untraced": "tracefs: no"}))]
    assert [await verified(), await verified()] == [SEEN] * 2
    assert [one.getMessage().count("tracefs: no") for one in caplog.records] == [1]


async def test_a_block_that_fails_ends_its_watch(started: list[Fake]) -> None:
    asked = queue.Queue[dict[str, Any]]()

    def answer(request: dict[str, Any]) -> bytes:
        asked.put(request)
        return honest(request)

    started += [Fake(answer)]
    with pytest.raises(ZeroDivisionError):
        async with watch.watching("watched", "r", (), {"/tests/x"}.__contains__):
            raise ZeroDivisionError
    begun = asked.get(timeout=5)["begin"]
    assert asked.get(timeout=5) == {"end": begun, "tests": [], "since": 0}


def looked(began: str = "1", name: str = "p", ran: int = 0, ports: tuple[int, ...] = ()) -> Looked:
    return Looked(began, 5, name, ran, list(ports), [], [])


@pytest.mark.parametrize(
    ("before", "after", "ran"),
    [
        (looked(), looked(), False),
        (looked(), looked(ran=1), True),
        (looked(), None, True),  # it ended
        (looked(), looked(began="2"), True),  # another has its number
        (looked(ran=-1), looked(ran=-1), True),  # it has too many threads
    ],
)
def test_a_process_ran_if_it_used_a_processor_or_ended(before: Looked, after: Looked | None, ran: bool) -> None:
    (found,) = living(1, {9: before}, {9: after} if after else {})
    assert found["ran"] is ran


@pytest.mark.parametrize("ran", [0, 5])
def test_the_first_process_is_judged_like_others(ran: int) -> None:
    (found,) = living(1, {1: looked()}, {1: looked(ran=ran)})
    assert (found["name"], found["ran"], found["holds"]) == ("1 (p)", ran > 0, False)


def test_a_process_that_began_to_listen_is_a_service() -> None:
    assert living(1, {9: looked()}, {9: looked(ports=(80,))})[0]["ports"] == [80]


def test_a_process_that_ceased_to_listen_is_a_service() -> None:
    assert living(1, {9: looked(ports=(80, 81))}, {9: looked(ports=(80,))})[0]["ports"] == [80, 81]
