"""The engine's side of the SDK's answers: paths of sampler weights, and why a model made by loading is not there.

Upstream: skyrl/tinker/engine.py. process_save_weights_for_sampler answers tinker://MODEL/NAME, which the SDK's own
helpers refuse: it is tinker://MODEL/sampler_weights/NAME. process_load_weights of a model that could not be made says
"likely stale request from previous server"; with create-via-load that is all that the client ever hears.
"""

# pyright: reportMissingImports=false
from typing import Any

from skyrl.tinker import types
from skyrl.tinker.engine import TinkerEngine

stock_save = TinkerEngine.process_save_weights_for_sampler
stock_create = TinkerEngine.process_create_model
stock_load = TinkerEngine.process_load_weights
MOST_FAILED = 1000
failed: dict[str, str] = {}  # model id -> why it could not be made


def process_save_weights_for_sampler(self: Any, model_id: str, request_data: types.SaveWeightsForSamplerInput) -> Any:
    answer = stock_save(self, model_id, request_data)
    if isinstance(answer, types.SaveWeightsForSamplerOutput) and answer.path:
        answer.path = f"tinker://{model_id}/sampler_weights/{answer.path.rsplit('/', 1)[-1]}"
    return answer


def process_create_model(self: Any, model_id: str, request_data: types.CreateModelInput) -> Any:
    try:
        return stock_create(self, model_id, request_data)
    except (ValueError, RuntimeError) as error:
        failed[model_id] = str(error)
        while len(failed) > MOST_FAILED:  # of whose loading nobody asks
            del failed[next(iter(failed))]
        raise


def process_load_weights(self: Any, model_id: str, request_data: types.LoadWeightsInput) -> Any:
    if model_id in failed:
        return types.ErrorResponse(error=failed.pop(model_id), status="failed")
    return stock_load(self, model_id, request_data)


def apply() -> None:
    TinkerEngine.process_save_weights_for_sampler = process_save_weights_for_sampler
    TinkerEngine.process_create_model = process_create_model
    TinkerEngine.process_load_weights = process_load_weights
