"""skyrl's request models with the fields of tinker SDK 0.38 that it lacks.

Upstream: skyrl/tinker/api.py, the request classes. Fields that they do not name are dropped without a word. To take a
field is not yet to honour it: the repairs do that.
"""

# pyright: reportMissingImports=false
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, model_validator
from skyrl.tinker import api

from repairs.api_routes import open_endpoint


class CreateModelRequest(api.CreateModelRequest):
    model_seq_id: int | None = None
    optimizer_config: dict[str, Any] | None = None
    user_metadata: dict[str, Any] | None = None


class LoadWeightsRequest(api.LoadWeightsRequest):
    """Either model_id, of a model that is there, or session_id and model_seq_id, of one to be made."""

    model_id: str | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    optimizer_config: dict[str, Any] | None = None
    user_metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_model(self) -> "LoadWeightsRequest":
        if self.model_id is None and (self.session_id is None or self.model_seq_id is None):
            raise ValueError("either 'model_id' or both 'session_id' and 'model_seq_id' must be provided")
        return self


class SaveWeightsRequest(api.SaveWeightsRequest):
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveWeightsForSamplerRequest(api.SaveWeightsForSamplerRequest):
    ttl_seconds: int | None = None
    kind: str = "snapshot"
    user_metadata: dict[str, str] | None = None


class AdamParams(api.AdamParams):
    grad_clip_norm: float = Field(default=0.0, ge=0.0)


class OptimStepRequest(api.OptimStepRequest):
    adam_params: AdamParams


class SamplingParams(api.SamplingParams):
    """`_ends`: tokens that end an answer beside those that the client names."""

    stop: str | list[int] | list[str] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    _ends: list[int] = PrivateAttr(default_factory=list)

    def to_types(self) -> Any:
        found = super().to_types()
        return found.model_copy(update={"stop_tokens": [*(found.stop_tokens or []), *self._ends] or None})


class TargetTokens(BaseModel):
    """The SDK's TensorData of whole numbers."""

    data: list[int]
    dtype: Literal["int64"]
    shape: list[int]
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class SampleRequest(api.SampleRequest):
    sampling_params: SamplingParams
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TargetTokens | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None


def apply() -> None:
    open_endpoint("create_model", request=CreateModelRequest)
    open_endpoint("load_weights", request=LoadWeightsRequest)
    open_endpoint("save_weights", request=SaveWeightsRequest)
    open_endpoint("save_weights_for_sampler", request=SaveWeightsForSamplerRequest)
    open_endpoint("optim_step", request=OptimStepRequest)
    open_endpoint("asample", request=SampleRequest)
