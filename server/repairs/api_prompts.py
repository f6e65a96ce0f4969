"""Prompts and sampling settings are checked before anything is queued; max_tokens may be left out.

Upstream: skyrl/tinker/api.py, SampleRequest, SamplingParams and asample. There a token beyond the vocabulary is NaN, no
prompt is too long, a request without max_tokens is refused, settings that the server does not have are dropped, and a
temperature that is not finite is a row that sqlite cannot read: the engine ends, also after each restart. Any number of
samples is taken: lists of as many prompts fill the engine's memory, and an answer beyond sqlite's limit ends it. An
answer without `stop` runs to max_tokens, where the SDK says that it ends at the model's own end.
"""

# pyright: reportMissingImports=false
import math
from typing import Any

from skyrl.tinker import types

from repairs import api_requests, api_targets, shared
from repairs.api_datums import check_fits, text_tokens
from repairs.api_limits import context_limit, end_tokens, vocabulary, whole_context
from repairs.api_routes import Endpoint, bad_request, wrap

ABSENT = (
    "topk_sample_logprobs",
    "prompt_alt_tokens_k",
    "record_stability_info",
)
MOST_LIKELIEST = 128  # tokens at each place of a prompt
LAST_N = "prompt_logprobs_last_n"
ASKED = "asked"  # what of a request skyrl does not pass on, until its row is made
MOST_SAMPLES = 1024  # of one request
MOST_TOKENS = 1 << 24  # of all its samples: 0.5 GB as JSON, and sqlite keeps 1 GB in one place


def fits(seed: int | None, num_samples: int) -> bool:
    """Into the engine's seeds: each sample has one of its own, from `seed` on."""
    return seed is None or (seed >= -(2**31) and seed + num_samples <= 2**31)


def check_settings(request: api_requests.SampleRequest) -> None:
    given = [name for name in ABSENT if getattr(request, name)]
    if given:
        raise bad_request(f"{', '.join(given)}: not offered by this server")
    params = request.sampling_params
    for name, value, good, rule in (
        ("num_samples", request.num_samples, 1 <= request.num_samples <= MOST_SAMPLES, f"from 1 to {MOST_SAMPLES}"),
        ("max_tokens", params.max_tokens, params.max_tokens is None or params.max_tokens >= 1, "positive"),
        ("temperature", params.temperature, 0 <= params.temperature < math.inf, "at least 0, and finite"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("seed", params.seed, fits(params.seed, request.num_samples), "a number of 32 bits, plus num_samples too"),
        ("top_k", params.top_k, params.top_k == -1 or params.top_k >= 1, "positive, or -1 for no limit"),
    ):
        if not good:
            raise bad_request(f"{name}={value}: must be {rule}")


def answer_limit(n_prompt: int, max_tokens: int | None, num_samples: int) -> int:
    """Tokens of each sample. Raises 400 when they do not fit into the context, or all samples not into an answer."""
    limit = context_limit()
    asked = max_tokens or max(whole_context() - n_prompt, 1)
    if num_samples * asked > MOST_TOKENS:
        raise bad_request(
            f"num_samples={num_samples} with max_tokens={asked}: more than {MOST_TOKENS} tokens in one answer; ask for "
            "fewer samples, or for shorter ones"
        )
    if n_prompt + asked > limit:
        raise bad_request(f"prompt of {n_prompt} tokens and max_tokens={asked}: more than the context limit of {limit}")
    return asked


def check_scores(request: api_requests.SampleRequest, n_prompt: int) -> None:
    top, last_n = request.topk_prompt_logprobs, request.prompt_logprobs_last_n
    if top > (most := min(MOST_LIKELIEST, vocabulary() // 2)):
        raise bad_request(f"topk_prompt_logprobs={top}: at most {most}")
    if last_n is not None and not (request.prompt_logprobs and 1 <= last_n < n_prompt):
        raise bad_request(f"{LAST_N}={last_n}: needs prompt_logprobs, and 1 to {n_prompt - 1} of {n_prompt} tokens")


def with_ends(params: api_requests.SamplingParams, max_tokens: int) -> api_requests.SamplingParams:
    """Without `stop`, or with strings, an answer ends at the model's own end as well; with [] or tokens it does not."""
    stop = [params.stop] if isinstance(params.stop, str) else params.stop
    found = params.model_copy(update={"max_tokens": max_tokens, "stop": stop})
    if stop is None or any(isinstance(one, str) for one in stop):
        found._ends = end_tokens()
    return found


def note_asked(session: Any, data: Any) -> None:
    """On the row of the request that this session makes."""
    data.last_n, data.targets = session.info.pop(ASKED, (None, None))


def remembered(stock: Endpoint) -> Endpoint:
    async def create_future(
        session: Any, request_type: Any, model_id: Any, request_data: Any, seq_id: Any = None
    ) -> int:
        if request_type == types.RequestType.SAMPLE:
            note_asked(session, request_data)
        return await stock(session, request_type, model_id, request_data, seq_id)

    return create_future


def checked(stock: Endpoint) -> Endpoint:
    async def asample(request: api_requests.SampleRequest, session: Any, **others: Any) -> Any:
        check_settings(request)
        n_prompt = len(text_tokens(request.prompt, "prompt"))
        if request.topk_prompt_logprobs:
            request.prompt_logprobs = True
        check_scores(request, n_prompt)
        targets = api_targets.targets_of(request, n_prompt)
        if targets is not None:
            request.prompt_logprobs = True
        session.info[ASKED] = request.prompt_logprobs_last_n, targets
        max_tokens = answer_limit(n_prompt, request.sampling_params.max_tokens, request.num_samples)
        if request.prompt_logprobs:  # by the engine, whatever samples
            check_fits(n_prompt, "trained", "prompt to be scored")
        if not (request.prompt_logprobs and max_tokens == 1):
            check_fits(n_prompt + max_tokens, "sampled", "prompt and max_tokens")
        params = with_ends(request.sampling_params, max_tokens)
        return await stock(request=request.model_copy(update={"sampling_params": params}), session=session, **others)

    return asample


def apply() -> None:
    api_requests.apply()
    api_targets.apply()
    shared.apply_samples()
    wrap("create_future", remembered)
    wrap("asample", checked)
