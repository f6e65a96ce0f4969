"""Tokens whose log-probabilities at the places of a prompt are asked for (the SDK's target_prompt_logprobs).

Upstream: skyrl/tinker/api.py, SampleRequest drops them; skyrl/tinker/proto_serialization.py has no place for an answer.
The engine finds them: engine_target_prompts.
"""

# pyright: reportMissingImports=false
from itertools import pairwise
from typing import Any

import numpy as np
from skyrl.tinker import proto_serialization as serialization
from skyrl.tinker.proto_serialization import pb

from repairs.api_datums import check_ids
from repairs.api_requests import SampleRequest
from repairs.api_routes import bad_request
from repairs.losses import MOST_TARGETS
from repairs.shared import SampleOutput, Targets

TARGETS = "target_prompt_logprobs"
FIELD = b"\x2a"  # number 5 of the SDK's SampleResponse, a message


def targets_of(request: SampleRequest, n_prompt: int) -> Targets | None:
    """Raises 400 where they are no tensor of ids for this prompt."""
    given = request.target_prompt_logprobs
    if given is None:
        return None
    rows, columns = [*given.shape, 0, 0][:2]
    if len(given.shape) != 2 or rows != n_prompt - 1 or not 1 <= columns <= MOST_TARGETS:
        raise bad_request(
            f"{TARGETS}: shape {given.shape}, not [{n_prompt - 1}, K] of a prompt of {n_prompt} tokens, K from 1 to "
            f"{MOST_TARGETS}"
        )
    starts, places = given.sparse_crow_indices, given.sparse_col_indices
    if (starts is None) != (places is None) or not whole(given.data, rows, columns, starts, places):
        raise bad_request(f"{TARGETS}: {len(given.data)} values that do not fill shape {given.shape}")
    check_ids([token for token in given.data if token != -1], TARGETS)
    alone = not request.prompt_logprobs
    return Targets(shape=given.shape, starts=starts, columns=places, ids=given.data, alone=alone)


def whole(ids: list[int], rows: int, columns: int, starts: list[int] | None, places: list[int] | None) -> bool:
    """Whether these are the cells of a tensor, dense where there are no `starts`."""
    if starts is None or places is None:
        return len(ids) == rows * columns
    rising = all(one <= other for one, other in pairwise(starts))
    counted = len(starts) == rows + 1 and starts[0] == 0 and starts[-1] == len(places) == len(ids)
    return rising and counted and all(0 <= place < columns for place in places)


def with_targets(stock: Any) -> Any:
    def serialize(result: dict[str, Any]) -> bytes:
        """Wraps proto_serialization's; the field is younger than the SDK of the server."""
        given = SampleOutput.model_validate(result).target_prompt_logprobs
        if given is None:
            return stock(result)
        tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=given.shape)
        values = np.asarray(given.values, np.float32).tobytes()
        if given.starts is None or given.columns is None:
            tensor.dense = values
        else:
            starts, columns = (np.asarray(one, np.int64).tobytes() for one in (given.starts, given.columns))
            tensor.sparse_csr.CopyFrom(pb.SparseCsr(values=values, crow_indices=starts, col_indices=columns))
        framed = pb.SampleResponse(prompt_logprobs=tensor.SerializeToString()).SerializeToString()
        return stock(result) + FIELD + framed[1:]  # length and bytes of a field, without its number

    return serialize


def apply() -> None:
    serialization._serialize_sample_output = with_targets(serialization._serialize_sample_output)
