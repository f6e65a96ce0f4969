import asyncio
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import tinker

from harbortrainer.backend.contract import TINKER_DOCUMENTS
from harbortrainer.backend.datum import build_datums
from harbortrainer.backend.faults import awaited, no_weights
from harbortrainer.config import Config
from harbortrainer.errors import BackendError, ServerLost, UserError
from harbortrainer.learning.datums import TrainingSequence
from harbortrainer.stats import student_quantile
from tests.support.fakes import STOCK


def config(**changes) -> Config:
    values: dict[str, Any] = {"model_name": "Qwen/Qwen3-4B", "tasks_dir": "d"}
    return Config(**(values | changes))


def sequence(n_prompt=3, n_sampled=2, advantage=0.5, name="t") -> TrainingSequence:
    mask = np.array([False] * n_prompt + [True] * n_sampled)
    n = len(mask)
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    return TrainingSequence(
        name, np.arange(n, dtype=np.int32), mask, logprobs, np.where(mask, advantage, 0).astype(np.float32)
    )


# -- datums


def test_datum_is_shifted_by_one_and_carries_the_mask_only_where_it_is_taken():
    (datum,) = build_datums([sequence()], "importance_sampling", STOCK, 100, 50)
    assert datum.model_input.to_ints() == [0, 1, 2, 3]
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == [1, 2, 3, 4]
    assert datum.loss_fn_inputs["weights"].to_numpy().tolist() == [0, 0, 1, 1]
    (cloud,) = build_datums([sequence()], "importance_sampling", TINKER_DOCUMENTS, 100, 50)
    assert "weights" not in cloud.loss_fn_inputs
    assert cloud.loss_fn_inputs["advantages"].to_numpy().tolist() == [0, 0, 0.5, 0.5]


def test_an_averaging_server_gets_advantages_times_what_it_divides_by():
    datums = build_datums([sequence(n_sampled=2), sequence(n_sampled=5)], "importance_sampling", STOCK, 100, 50)
    scales = [datum.loss_fn_inputs["advantages"].to_numpy().max() / 0.5 for datum in datums]
    assert scales == [2 * 2, 5 * 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs_T": np.zeros(4, np.float32)}, r"\(4,\) logprobs .*for 5 tokens"),
        ({"advantages_T": np.ones(5, np.int64)}, "advantages of int64"),
        ({"tokens_T": np.array([-3, 2, 3, 4, 5], np.int32)}, "token -3"),
        ({"advantages_T": np.ones(5, np.float32)}, "neither sampled nor observed"),
        ({"mask_T": np.zeros(5, np.bool_)}, "at least one sampled token"),
        ({"tokens_T": np.array([1, 2, 3, 4, 100], np.int32)}, "token 100 is outside the vocabulary of 100"),
        ({"logprobs_T": np.array([0, 0, 0, np.nan, -1], np.float32)}, "finite"),
        ({"logprobs_T": np.array([0, 0, 0, 0.5, -1], np.float32)}, "above 0"),
    ],
)
def test_malformed_sequence_is_never_sent(changes, words):
    with pytest.raises(ValueError, match=words):
        build_datums([sequence(), replace(sequence(name="bad"), **changes)], "importance_sampling", STOCK, 100, 50)


def test_sequence_beyond_the_servers_context_is_never_sent():
    with pytest.raises(UserError, match=r"context_limit: trial t has 5 tokens, the server takes at most 4; resume on"):
        build_datums([sequence()], "importance_sampling", STOCK, 100, 4)


# -- faults


def http_error(status: int, detail: Any) -> tinker.APIStatusError:
    """As the SDK makes it: the body in the message and on its own."""
    body = {"detail": detail}
    response = httpx.Response(status, request=httpx.Request("POST", "http://x"))
    return tinker.APIStatusError(f"Error code: {status} - {body}", response=response, body=body)


def future_error(text: str) -> ValueError:
    """A failed future's: the answer only quoted in the message."""
    return ValueError(f"Error retrieving result: {text} for self.request_id='57' — exceeded 3 retries")


WRONG_VALUE = [{"type": "less_than", "loc": ["body", "adam_params", "beta1"], "msg": "Input should be less than 1"}]
NAN_NORM = "1 validation error for OptimStepResponse\nmetrics.`skyrl.ai/grad_norm`\n  Input should be a valid number"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (http_error(400, "LoRA rank 64 must be between 1 and 32"), r"lora_rank.*at most 32"),
        (http_error(400, "Maximum number of LoRA adapters (8) reached"), r"MAX_LORA_ADAPTERS"),
        (
            future_error("Error code: 400 - {'detail': 'Model model_1 not loaded'} (status 400)"),
            r"has forgotten the model",
        ),
        (
            future_error("Error code: 400 - {'detail': \"Loss functions ['gspo'] are not\"}"),
            r"Loss functions \['gspo'\]",
        ),
        (future_error(NAN_NORM), r"diverged.*learning_rate"),
        (http_error(404, "Checkpoint not found: model_1/x"), r"FRESH=1"),
        (http_error(404, "Not Found"), rf"tinker {tinker.__version__}"),
        (http_error(422, WRONG_VALUE), r"body\.adam_params\.beta1: Input should be less than 1$"),
        (ConnectionRefusedError("no"), r"healthz"),
        (http_error(400, "something new"), r"optim_step: something new$"),
    ],
)
async def test_sdk_errors_become_one_plain_line(error, words):
    async def fail() -> None:
        raise error

    with pytest.raises(BackendError, match=words) as raised:
        await awaited("optim_step", fail(), 1.0)
    assert str(raised.value).startswith("optim_step: ") and "\n" not in str(raised.value)


async def test_a_bug_of_this_package_keeps_its_traceback():
    """The probe computes while a call is awaited."""

    async def fail() -> None:
        student_quantile(0.95, 0)

    with pytest.raises(ValueError, match="0 degrees of freedom") as raised:
        await awaited("measuring the server", fail(), 1.0)
    assert not isinstance(raised.value, BackendError)


async def test_a_server_that_hangs_is_named_by_what_was_waited_for():
    with pytest.raises(BackendError, match=r"forward_backward: no answer within"):
        await awaited("forward_backward", asyncio.Event().wait(), 0.01)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (http_error(404, "Session not found"), ServerLost),
        (http_error(404, "Session not found: s1"), ServerLost),
        (http_error(404, "Model not found"), ServerLost),
        (future_error("Error code: 404 - {'detail': 'Future not found'}"), ServerLost),
        (future_error("Error code: 400 - {'detail': 'Model s1:train:0 not loaded'} (status 400)"), ServerLost),
        (
            http_error(400, "model m is not loaded: unloaded, its session timed out, or the server restarted"),
            ServerLost,
        ),
        (future_error("Error code: 400 - {'detail': '[Errno 28] No space left on device: x'}"), BackendError),
        (http_error(422, "no such loss"), BackendError),
    ],
)
async def test_what_a_restored_state_may_mend_is_told_from_what_it_cannot(error, kind):
    async def fail():
        raise error

    with pytest.raises(BackendError) as raised:
        await awaited("optim_step", fail(), 60.0)
    assert type(raised.value) is kind
    if "space" in str(error):
        assert "server's disk is full: make room" in str(raised.value)


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (
            tinker.NotFoundError("x", response=httpx.Response(404, request=httpx.Request("GET", "http://x")), body={}),
            True,
        ),
        (http_error(404, "Checkpoint not found: a/b"), True),
        (http_error(404, "Checkpoint a/b not found: its time to live is over"), True),
        (http_error(400, "Checkpoint creation failed: the server stopped before it was saved"), True),
        (http_error(404, "Not Found"), False),
        (http_error(404, "Session not found: s1"), False),
        (http_error(500, "Internal Server Error"), False),
    ],
)
def test_weights_that_the_server_does_not_have(error, gone):
    assert no_weights(error) == gone
