"""Malformed training data is refused before anything is queued, with the datum and the field.

Upstream: skyrl/tinker/api.py, Datum and forward_backward. There missing targets are a 500, which the SDK retries for
minutes; short or absent weights, log-probabilities and advantages are padded with zeros; NaN and ids beyond the
vocabulary are computed with; no length is too long.
"""

# pyright: reportMissingImports=false
import math
from typing import Any

import numpy as np
from skyrl.tinker import api

from repairs.api_limits import context_limit, fitting, vocabulary
from repairs.api_routes import Endpoint, bad_request, wrap
from repairs.losses import MOST_TARGETS, RATIO_MASK

TARGETS = "target_tokens"
NUMBERS = ("weights", "logprobs", "advantages", "values", "returns", "rollout_logprobs", RATIO_MASK)
SAMPLED = ("importance_sampling", "ppo", "cispo", "gspo", "dro")  # losses that need what was sampled


def text_tokens(model_input: api.ModelInput, where: str) -> list[int]:
    """Token ids of a prompt or datum. Raises 400: another kind of chunk, none, too many, or beyond the vocabulary."""
    if any(chunk.type != "encoded_text" for chunk in model_input.chunks):
        raise bad_request(f"{where}: only text tokens are supported")
    tokens = [token for chunk in model_input.chunks for token in chunk.tokens]  # pyright: ignore[reportAttributeAccessIssue]
    if not tokens:
        raise bad_request(f"{where}: empty")
    limit = context_limit()
    if len(tokens) > limit:
        raise bad_request(f"{where}: {len(tokens)} tokens, more than the context limit of {limit}")
    check_ids(tokens, where)
    return tokens


def check_fits(tokens: int, what: str, where: str) -> None:
    """Raises 400 when so many tokens do not fit into the engine's memory. `what`: trained, or sampled."""
    most = fitting().get(what, tokens)
    if tokens > most:
        raise bad_request(
            f"{where}: {tokens} tokens; the server's memory holds {most} where they are {what}: "
            f"set context_limit={most}, or give the server more memory or GPUs"
        )


def check_ids(tokens: list[int], where: str) -> None:
    ids, size = np.asarray(tokens), vocabulary()
    wrong = np.flatnonzero((ids < 0) | (ids >= size) | (ids != np.floor(ids)))
    if wrong.size:
        place = int(wrong[0])
        raise bad_request(
            f"{where}: token {tokens[place]} at position {place} is not in the vocabulary (0 to {size - 1})"
        )


def check_datum(index: int, datum: api.Datum, loss_fn: str) -> None:
    where = f"datum {index}"
    n = len(text_tokens(datum.model_input, f"{where}: model_input"))
    check_fits(n, "trained", where)
    inputs = datum.loss_fn_inputs
    if unknown := sorted(inputs.keys() - {TARGETS, *NUMBERS}):
        raise bad_request(f"{where}: {', '.join(unknown)}: no input of any loss here; leave it out")
    needed = [TARGETS, *(("logprobs", "advantages") if loss_fn in SAMPLED else ())]
    for name in (*needed, *([RATIO_MASK] if loss_fn == "gspo" else [])):
        if name not in inputs:
            raise bad_request(f"{where}: {name} is missing, which loss_fn={loss_fn} needs")
    if loss_fn == "gspo" and not any(inputs[RATIO_MASK].data):
        raise bad_request(f"{where}: {RATIO_MASK} marks no token")
    several = targets_each(where, inputs[TARGETS], loss_fn)
    for name, tensor in sorted(inputs.items(), key=lambda input: input[0] != TARGETS):
        asked = [n, several] if several > 1 and name in (TARGETS, "weights") else [n]
        if len(tensor.data) != math.prod(asked) or (shape_of(tensor) not in ([n, 1], asked)):
            raise bad_request(f"{where}: {name}: shape {shape_of(tensor)}, not {asked}: the input has {n} tokens")
        if not np.isfinite(tensor.data).all():
            raise bad_request(f"{where}: {name}: not all finite (NaN or infinite)")
    check_ids(inputs[TARGETS].data, f"{where}: {TARGETS}")


def shape_of(tensor: Any) -> list[int]:
    return getattr(tensor, "shape", None) or [len(tensor.data)]


def targets_each(where: str, targets: Any, loss_fn: str) -> int:
    """How many targets each token has. Raises 400 where it may have only one, or has too many."""
    several = shape_of(targets)[1] if len(shape_of(targets)) > 1 else 1
    if several > 1 and loss_fn != "cross_entropy":
        raise bad_request(f"{where}: {TARGETS}: shape {shape_of(targets)}; only cross_entropy has several a token")
    if not 1 <= several <= MOST_TARGETS:
        raise bad_request(f"{where}: {TARGETS}: {several} a token; from 1 to {MOST_TARGETS} are offered")
    return several


def check(given: api.ForwardBackwardInput) -> None:
    """Raises 400 for the first fault."""
    if not given.data:
        raise bad_request("data: empty")
    for name, value in (given.loss_fn_config or {}).items():
        if not np.isfinite(value):
            raise bad_request(f"loss_fn_config: {name}={value} is not finite")
    for index, datum in enumerate(given.data):
        check_datum(index, datum, given.loss_fn)
    numbers = {targets_each("", datum.loss_fn_inputs[TARGETS], given.loss_fn) for datum in given.data}
    if len(numbers) > 1:
        raise bad_request(f"{TARGETS}: {sorted(numbers)} targets a token in one request; send each in its own")


def checked(stock: Endpoint) -> Endpoint:
    async def read(request: Any) -> Any:
        parsed, forward_only = await stock(request)
        check(parsed.forward_backward_input)
        return parsed, forward_only

    return read


def apply() -> None:
    wrap("_read_forward_backward_request", checked)
