"""What a server reports about its work: lines while it compiles, metrics between two readings."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from harbortrainer.backend.connect import Api, Backend
from harbortrainer.backend.contract import CLOUD, SELF_HOSTED
from harbortrainer.backend.load import look, say_what_compiles
from harbortrainer.run.metrics import compile_metrics, load_metrics
from tests.support.failing_server import PAGE, failing_server
from tests.support.virtual_time import in_virtual_time

BEFORE = {"seats": 64, "waves": 100, "wave_requests": 900, "wave_seconds": 60.0, "compile_seconds": 30.0}


def after(**more: Any) -> dict[str, Any]:
    return {**BEFORE, "waves": 120, "wave_requests": 1130, "wave_seconds": 73.0, "compile_seconds": 71.0, **more}


def test_metrics_are_of_the_time_between_two_readings() -> None:
    assert load_metrics(BEFORE, after()) == pytest.approx(
        {
            "server/seats": 64.0,
            "server/requests_per_wave": 11.5,
            "server/wave_seconds": 0.65,
        }
    )


def test_gpu_busy_is_there_where_it_was_measured() -> None:
    found = load_metrics(BEFORE, after(gpu_busy_seconds=14.4, gpu_seconds=20.0))
    assert found["server/gpu_busy"] == pytest.approx(0.72)


@pytest.mark.parametrize(("one", "other"), [({}, {}), ({}, BEFORE), (BEFORE, {}), (after(), BEFORE)])
def test_other_servers_and_restarted_ones_give_no_metrics(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert load_metrics(one, other) == compile_metrics(one, other) == {}


def test_a_step_without_sampling_and_a_server_without_seats() -> None:
    assert load_metrics({**BEFORE, "seats": 0}, {**BEFORE, "seats": 0}) == {}


def test_programs_that_a_server_compiles_and_reads_from_its_cache_are_counted() -> None:
    before, later = BEFORE | {"compiles": 9, "compiles_cached": 1}, after(compiles=12, compiles_cached=1)
    counted = {"server/compiles": 3.0, "server/compiles_cached": 0.0, "server/compile_seconds": 41.0}
    assert compile_metrics(before, later) == counted
    assert compile_metrics(BEFORE, after()) == {"server/compile_seconds": 41.0}, "an older server counts no programs"


def lines(*readings: Mapping[str, Any]) -> list[str]:
    """What is said until there are no more readings."""

    async def run() -> list[str]:
        said, over, left = list[str](), asyncio.Event(), iter(readings)

        async def read() -> Mapping[str, Any]:
            if (found := next(left, None)) is None:
                over.set()
            return found or {}

        task = asyncio.create_task(say_what_compiles(read, said.append))
        await over.wait()
        task.cancel()
        return said

    return in_virtual_time(run())


def test_a_long_compilation_is_said_and_said_again_and_a_short_one_never() -> None:
    one = [{"compiling": "a training pass", "compiling_seconds": float(second)} for second in range(1, 24, 2)]
    two = [{"compiling": "a sampling wave", "compiling_seconds": 4.0}]
    assert [line.split(";")[0] for line in lines({}, *one, *two, {"compiling": None})] == [
        "the server compiles a training pass: 3 s so far",
        "the server compiles a training pass: 19 s so far",
        "the server compiles a sampling wave: 4 s so far",
    ]
    assert lines({}, {"compiling": "x", "compiling_seconds": 0.5}, {}, {"compiling": None}) == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"status": "ok", "load": {"waves": 1}}, {"waves": 1}),
        ({"status": "ok"}, {}),
        ([1], {}),
        (404, {}),
        (502, None),
    ],
)
async def test_what_healthz_answers(answer: Any, expected: dict[str, Any] | None) -> None:
    with failing_server({"/api/v1/healthz": answer}) as url:
        assert await look(url) == expected
    with failing_server({}, otherwise=PAGE) as url:
        assert await look(url) == {}


async def test_a_server_that_does_not_answer_is_down() -> None:
    assert await look("http://127.0.0.1:9") is None


async def test_a_look_at_the_server_is_noted_and_tinker_cloud_is_asked_only_while_requests_wait() -> None:
    asked = list[str]()

    class Down(Api):
        async def load(self, url: str) -> None:
            asked.append(url)

    nothing: Any = None
    own, cloud = (
        Backend(nothing, nothing, kind, nothing, kind.name, None, nothing, api=Down()) for kind in (SELF_HOSTED, CLOUD)
    )
    for backend in (own, cloud):
        backend.silences.looked({})
        backend.silences._sign_at = asyncio.get_running_loop().time() - 30
        assert await backend.load() == {}
    assert asked == [own.url] and own.silences.silent_now >= 30 and not cloud.silences.silent_now
    cloud.silences.asked()
    assert await cloud.load() == {} and asked == [own.url, cloud.url]
