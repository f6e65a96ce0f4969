"""The doctor on real servers: what is wrong with the published server is found there, and nothing on ours."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import tinker

from harbortrainer.backend.sessions import DUMMY_KEY, open_rest, open_session
from harbortrainer.cli.main import main
from harbortrainer.probe.report import ServerReport
from tests.support.failing_server import FIRST, OF_OLDER_SDKS, PAGE, failing_server
from tests.support.tiers import first

LIMIT_SEC = 30.0
DEFECTS = (
    "a late first sample leaves training alone (defect 1)",
    "a used sampler stays frozen while training continues (defect 2)",
    "reduction",
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Report of a server, measured once by the command itself."""
    reports: dict[str, ServerReport] = {}
    folder = tmp_path_factory.mktemp("doctor")

    def report(url: str) -> ServerReport:
        if url not in reports:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(folder))
                path = folder / f"{len(reports)}.json"
                assert main(["doctor", "backend=skyrl-tx", f"skyrl_tx_url={url}", f"json={path}"]) == 0
                reports[url] = ServerReport.from_json(path.read_text())
        return reports[url]

    return report


def verdicts(report: ServerReport) -> dict[str, str]:
    return {row.what: row.verdict for row in report.rows}


CLOSED = FIRST | {"/api/v1/create_session": None}
HEALTH = {"/api/v1/healthz": FIRST["/api/v1/healthz"]}
OLDER = {path: answer for path, answer in FIRST.items() if "config" not in path}  # skyrl-tx 0.3.0 lacks it
NO_API, SDK = "no Tinker API there", f"SDK tinker {tinker.__version__}"


FAILING = (
    (FIRST, None, ["and no other request", "'Another-RL' 0.1", SDK]),
    (HEALTH, None, ["answers GET /api/v1/healthz, and no other request", "a server without a name"]),
    ({}, None, ["no answer within 10 s"]),
    ({}, 500, [f"{NO_API} (healthz answered 500"]),
    ({}, PAGE, [f"{NO_API} (healthz answered 200 <html>"]),
    ({"/api/v1/healthz": {"ok": True}}, 500, [NO_API, '{"ok": true}']),
    (HEALTH, 500, ["answers 500 to POST", "a server without a name"]),
    (HEALTH, PAGE, ["200 to POST /api/v1/client/config", "text/html", "a server without a name", SDK]),
    (OLDER, 404, ["404 to POST /api/v1/client/config", "'Another-RL' 0.1", SDK]),
    (FIRST, 404, ["404 to POST /api/v1/create_model", "'Another-RL' 0.1", SDK]),
    (FIRST, 500, ["answers 500 to POST /api/v1/create_model", "'Another-RL' 0.1", SDK]),
    (CLOSED, 404, ["closes POST /api/v1/create_session without an answer", "'Another-RL' 0.1", SDK]),
    (OF_OLDER_SDKS, 500, ["answers 500 to POST /api/v1/forward_backward", "'Another-RL' 0.1", SDK]),
)


# A process for each server: the SDK still repeats its requests then. All are forked from one, which has the imports.
DOCTORS = """
import os, sys
import harbortrainer.doctor.servers
from harbortrainer.cli.main import main
for number, words in enumerate(sys.argv[1:]):
    if not os.fork():
        os.dup2(os.open(f"said{number}", os.O_CREAT | os.O_WRONLY), 2)
        os.environ["XDG_CACHE_HOME"] = f"cache{number}"
        sys.exit(main(["doctor", *words.split()]))
for _ in sys.argv[1:]:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 2
"""


def doctors(folder: Path, *words: str, **environment: str) -> list[str]:
    """What the doctor says of servers that fail, to each of these lines of words."""
    command, env = [sys.executable, "-c", DOCTORS, *words], os.environ | environment
    subprocess.run(command, cwd=folder, env=env, timeout=300, check=True, stdout=subprocess.DEVNULL)
    return [(folder / f"said{number}").read_text() for number in range(len(words))]


@pytest.mark.parametrize("failing", first(1, [[*FAILING[4::2][:4]], [*FAILING[:4], *FAILING[5::2]]]))
def test_a_server_that_fails_is_named_soon(failing, tmp_path):
    asked: list[float] = []
    with contextlib.ExitStack() as servers:
        urls = [servers.enter_context(failing_server(given, other, asked)) for given, other, _ in failing]
        told = doctors(tmp_path, *(f"backend=skyrl-tx skyrl_tx_url={url}" for url in urls))
        assert time.monotonic() - asked[0] < LIMIT_SEC, "from the first request on"
    for (*_, words), said in zip(failing, told, strict=True):
        *parts, line = said.splitlines()
        assert parts in ([], ["measuring losses"]) and all(word in line for word in words), said


@pytest.mark.nightly
@pytest.mark.parametrize("status", [500, 503])
def test_tinker_cloud_that_fails_is_no_other_server(status, tmp_path):
    with failing_server(HEALTH, status) as url:
        words = f"backend=tinker tinker_base_url={url} model_name=m"
        (said,) = doctors(tmp_path, words, TINKER_API_KEY="tml-nobodys-key-at-all")
    assert said.count("\n") == 1, said
    assert f"answers {status} to POST /api/v1/" in said and " times in " in said
    assert "request id req-7" in said and "the server fails" in said and "no Tinker" not in said


def test_ours_has_none_of_the_defects(server_url, measured):
    found = verdicts(measured(server_url))
    assert {what: found.get(what) for what in DEFECTS} == dict.fromkeys(DEFECTS, "same")


def test_stock_has_all_defects(stock_url, measured):
    found = verdicts(measured(stock_url))
    assert {what: found.get(what) for what in DEFECTS} == dict.fromkeys(DEFECTS, "differs")


def test_facts_of_ours(server_url, measured):
    facts = measured(server_url).facts
    assert facts.reduction == "sum"
    assert set(facts.adam.values()) == {True} and len(facts.adam) == 5
    assert facts.losses["ppo"] == facts.losses["cispo"] == ("clip_low_threshold", "clip_high_threshold")
    assert (facts.can_sample, facts.prompt_logprobs) == (True, "leading_none")
    assert (facts.frozen_samplers, facts.sampling_keeps_training) == (True, True)


def test_facts_of_stock(stock_url, measured):
    facts = measured(stock_url).facts
    assert facts.reduction == "example_mean"
    assert {name for name, honoured in facts.adam.items() if not honoured} == {"grad_clip_norm"}
    assert (facts.frozen_samplers, facts.sampling_keeps_training) == (False, False)
    assert facts.prompt_logprobs == "short"


@pytest.mark.parametrize("server", ["server_url", "stock_url"])
def test_nothing_is_left_behind(server, measured, request):
    url = request.getfixturevalue(server)
    measured(url)
    api = httpx.Client(base_url=f"{url}/api/v1", timeout=600)
    runs = api.get("training_runs", params={"limit": 100}).json()["training_runs"]
    names = []
    for run in runs:
        listed = api.get(f"training_runs/{run['training_run_id']}/checkpoints").json().get("checkpoints", [])
        names += [one["checkpoint_id"] for one in listed if "probe-" in one["checkpoint_id"]]
    assert names == []


async def test_a_probe_that_is_stopped_leaves_nothing(server_url, tiny_model_dir, monkeypatch):
    """Stopped with an adapter and a checkpoint on the server: both are gone when the cancellation is through."""
    from harbortrainer.probe import probe
    from harbortrainer.probe.session import ProbeSession

    session = await open_session(await open_rest(server_url, DUMMY_KEY), server_url, DUMMY_KEY, print)
    benches: list[ProbeSession] = []
    saved = asyncio.Event()

    async def hang(bench: ProbeSession, *_: object) -> None:
        benches.append(bench)
        await bench.renew()
        await bench.published(bench.client, "left")
        saved.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(probe, "measure_all", hang)
    work = asyncio.create_task(probe.probe(session, str(tiny_model_dir)))
    await saved.wait()
    model_id = benches[0]._models[0]
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    async with httpx.AsyncClient(base_url=f"{server_url}/api/v1", timeout=600) as http:
        listed = (await http.get(f"training_runs/{model_id}/checkpoints")).json().get("checkpoints", [])
        again = await http.post("unload_model", json={"model_id": model_id})
    assert listed == []
    assert again.status_code in (400, 404)
