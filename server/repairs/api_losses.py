"""Losses as the SDK names them, and several targets a token, (N, K), for cross_entropy.

Upstream: skyrl/tinker/api.py, ForwardBackwardInput (see losses.py); TensorData drops shapes, so that K targets a token
are targets of another length; skyrl/tinker/proto_serialization.py refuses the sparse tensors that the SDK sends.
"""

# pyright: reportMissingImports=false
from typing import Any, ClassVar

import numpy as np
from pydantic import field_validator
from skyrl.tinker import api, proto_serialization, types

from repairs import losses

stock_tensor = proto_serialization._tensor_from_proto


class TensorData(api.TensorData):
    shape: list[int] | None = None


class Datum(api.Datum):
    loss_fn_inputs: dict[str, TensorData]  # pyright: ignore[reportIncompatibleVariableOverride]

    def to_types(self) -> types.Datum:
        made = super().to_types()
        if losses.RATIO_MASK in self.loss_fn_inputs:
            made.loss_fn_inputs.values = self.loss_fn_inputs[losses.RATIO_MASK].to_types()
        return made


class ForwardBackwardInput(api.ForwardBackwardInput):
    _ALLOWED_KEYS_BY_LOSS_FN: ClassVar[dict[str, set[str]]] = losses.SETTINGS
    data: list[Datum]  # pyright: ignore[reportIncompatibleVariableOverride]
    loss_fn: losses.Loss  # pyright: ignore[reportIncompatibleVariableOverride]

    @field_validator("loss_fn", mode="before")
    @classmethod
    def check_loss(cls, name: Any) -> Any:
        if name in losses.ELSEWHERE:
            raise ValueError(f"loss_fn={name} is not offered: {losses.ELSEWHERE[name]}")
        return name


class ForwardBackwardRequest(api.ForwardBackwardRequest):
    forward_backward_input: ForwardBackwardInput


def tensor_from_proto(tensor: Any) -> dict[str, Any]:
    """Wraps proto_serialization's. Raises ValueError for a tensor that is none."""
    shape = list(tensor.shape)
    if tensor.WhichOneof("encoding") != "sparse_csr":
        found = stock_tensor(tensor)
        if shape and np.prod(shape) != len(found["data"]):
            raise ValueError(f"a tensor of shape {shape} has {len(found['data'])} values")
        return found | {"shape": shape or None}
    sparse = tensor.sparse_csr
    starts, columns = (np.frombuffer(raw, np.int64) for raw in (sparse.crow_indices, sparse.col_indices))
    values = np.frombuffer(sparse.values, proto_serialization._PROTO_DTYPE_TO_NUMPY.get(tensor.dtype, np.float32))
    counts = np.diff(starts)
    fits = len(shape) == 2 and len(counts) == shape[0] and len(columns) == len(values) == counts.sum()
    if not fits or shape[1] > losses.MOST_TARGETS or (counts < 0).any() or not set(columns) <= set(range(shape[1])):
        raise ValueError(
            f"a sparse tensor of shape {shape}: other rows or columns, or over {losses.MOST_TARGETS} columns"
        )
    dense = np.zeros(shape, values.dtype)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return {"data": dense.ravel().tolist(), "shape": shape}


def apply() -> None:
    losses.apply()
    proto_serialization._tensor_from_proto = tensor_from_proto
    api.ForwardBackwardRequest = ForwardBackwardRequest
