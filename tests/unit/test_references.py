"""Weights to compare with, on a scripted SDK: how a state becomes a sampler, what is recorded, what a resume does."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tinker

from harbortrainer.backend.policy import SavedState
from harbortrainer.backend.reference import Reference
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.errors import BackendError, UserError, WeightsGone
from harbortrainer.run.checkpoints import CheckpointLog
from harbortrainer.training.outage import delete_orphans
from harbortrainer.training.references import open_references
from tests.support.fake_tinker import CONFIG, FakeTinker, backend, sequence
from tests.support.resumed import Again, again, of

__all__ = ["again"]  # a fixture

STATE = SavedState("kl_reference=runs/a@3", "tinker://a/weights/s", "runs/a", 3)
SAMPLER = "tinker://model_1/sampler_weights/reference"


@pytest.fixture
def fake() -> FakeTinker:
    return FakeTinker()


@pytest.fixture
def log(tmp_path: Path) -> CheckpointLog:
    return CheckpointLog(tmp_path / "checkpoints.jsonl")


def reference(fake: FakeTinker, log: CheckpointLog, state: SavedState | None = STATE) -> Reference:
    return Reference(backend(fake), "m", log, state)


@pytest.mark.parametrize("answer", [[None, -1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -4.0]])
async def test_logprobs_lead_with_none_on_the_cloud_and_are_one_short_on_the_published_server(fake, log, answer):
    fake.base_logprobs = answer
    (logprobs,) = await reference(fake, log, None).logprobs([sequence()])
    assert logprobs.tolist() == [0, -1, -2, -3, -4]
    assert fake.log == ["sampler m"]


async def test_logprobs_of_another_number_stop_the_run(fake, log):
    fake.base_logprobs = [-1.0]
    with pytest.raises(BackendError, match="1 for 5 tokens"):
        await reference(fake, log, None).logprobs([sequence()])


async def test_a_state_is_loaded_once_saved_for_sampling_and_recorded(fake, log):
    one = reference(fake, log)
    for _ in range(2):
        await one.logprobs([sequence()])
    assert fake.log == ["await weights_info", "load without optimizer tinker://a/weights/s", "await save",
                        f"sampler {SAMPLER}"]  # fmt: skip
    assert log.sampler_of(STATE.path) == SAMPLER and log.models() == ["model_1"] and SAMPLER in log.paths


async def test_a_later_process_uses_the_recorded_sampler(fake, log):
    log.note_sampler(STATE.path, SAMPLER)
    fake.listed = [SimpleNamespace(tinker_path=SAMPLER, expires_at=None)]
    await reference(fake, log).logprobs([sequence()])
    assert fake.log == [f"sampler {SAMPLER}"]


async def test_a_sampler_that_the_server_has_lost_is_made_again(fake, log):
    log.note_sampler(STATE.path, "tinker://gone/sampler_weights/reference")
    await reference(fake, log).logprobs([sequence()])
    assert fake.log[-1] == f"sampler {SAMPLER}" and log.sampler_of(STATE.path) == SAMPLER


async def test_after_a_lost_session_the_client_is_made_again(fake, log):
    one = reference(fake, log, None)
    await one.logprobs([sequence()])
    one._backend.service = FakeTinker()  # pyright: ignore[reportAttributeAccessIssue]
    await one.logprobs([sequence()])
    assert one._backend.service.log == ["sampler m"]  # pyright: ignore[reportAttributeAccessIssue]


async def test_leftovers_are_deleted_and_the_sampler_is_not(fake, log):
    await reference(fake, log).ready()
    leftover = "tinker://model_1/sampler_weights/old"
    fake.listed = [SimpleNamespace(tinker_path=path, expires_at=None) for path in (SAMPLER, leftover)]
    policy: Any = SimpleNamespace(model_id="model_2", saved=reference(fake, log)._saved)
    await delete_orphans(policy, log)
    assert [entry for entry in fake.log if entry.startswith("delete")] == [f"delete {leftover}"]
    assert log.models() == ["model_1", "model_2"]


async def test_a_teacher_of_another_base_model_is_refused_and_any_rank_is_taken(fake, log):
    fake.weights = SimpleNamespace(base_model="m", lora_rank=4)
    await reference(fake, log).ready()
    fake.weights = SimpleNamespace(base_model="other", lora_rank=4)
    log.drop_sampler(STATE.path)
    with pytest.raises(UserError, match="model_name=m: the checkpoint tinker://a/weights/s belongs to other"):
        await reference(fake, log).ready()


def gone(fake: Any) -> None:
    response = httpx.Response(404, request=httpx.Request("GET", "http://x"))
    error = tinker.NotFoundError("Checkpoint not found", response=response, body={"detail": "Checkpoint not found"})

    class Gone:
        def __await__(self):
            raise error
            yield

    fake.get_weights_info_by_tinker_path = lambda path: Gone()


async def test_a_lost_teacher_is_an_error_and_a_lost_start_ends_only_its_metric(fake, log, caplog):
    lost_later = await open_references(backend(fake), log, [CONFIG], STATE, {})
    assert (await lost_later.compare(0, [sequence()], CONFIG))[1].keys() == {"kl/start"}
    gone(fake)
    lost_later._start._session = None  # type: ignore[union-attr]  # as after a lost server
    for opened in (lost_later, await open_references(backend(fake), log, [CONFIG], STATE, {})):
        _, metrics, scored = await opened.compare(0, [sequence()], CONFIG)
        assert metrics == {} and not scored
    assert caplog.text.count("kl/start: kl_reference=runs/a@3: ") == 2 == caplog.text.count("not measured any more")
    penalised = CONFIG.__class__(model_name="m", tasks_dir="d", kl_penalty_coef=1.0, kl_reference="runs/a@3")
    with pytest.raises(WeightsGone, match=r"kl_reference=runs/a@3: .*give a state that this server has"):
        await open_references(backend(fake), log, [penalised], None, {"runs/a@3": STATE})


async def test_a_run_makes_its_teacher_before_its_adapter_and_deletes_it_at_its_end(again: Again) -> None:
    teacher = ("kl_penalty_coef=1", "kl_reference=tinker://t/weights/state-9", "advantage=none")
    await again.process(*teacher, "max_trials=11")
    (record,) = read_lines(again.folder / "references.jsonl")
    assert record == {"state": "tinker://t/weights/state-9", "sampler": SAMPLER}
    effective = json.loads((again.folder / "effective.json").read_text())
    assert effective["kl_references"]["tinker://t/weights/state-9"]["path"] == "tinker://t/weights/state-9"
    await again.process("max_trials=0")
    assert again.steps() == [1, 2]
    assert read_lines(again.folder / "references.jsonl") == []
    rows = read_lines(again.folder / "metrics.jsonl")
    assert all({"kl/reference", "kl/start"} <= row.keys() and "kl/base" not in row for row in rows)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("kl_reference=start", "kl_reference=start: without effect while kl_penalty_coef=0"),
        ("advantage=none", "advantage=none: leaves nothing to learn from; set kl_penalty_coef"),
        (
            "advantage=none kl_penalty_coef=1 normalize_advantages_by_std=true",
            "normalize_advantages_by_std=true: without effect while advantage=none",
        ),
        ("kl_penalty_coef=1 kl_reference=nowhere", "kl_reference=nowhere: no run directory"),
    ],
)
async def test_settings_that_contradict_are_refused(again: Again, argument: str, words: str) -> None:
    (refusal,) = of("refused", await again.process(*argument.split()))
    assert refusal["words"].startswith(words)
    assert not again.folder.exists()


async def test_without_rewards_a_group_of_one_is_enough(again: Again) -> None:
    events = await again.process("group_size=1", "advantage=none", "kl_penalty_coef=1")
    assert not of("refused", events) and len(of("datum", events)) == 4
