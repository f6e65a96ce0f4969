"""The engine's side of api_external: paths of external weights, and adapters that were sent as training states.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.load_checkpoint reads skyrl's own states alone, which are folders; of a
folder that is gone it "loads" the weights that the new model has, as flax gives its target back. Here that is an error,
and a file there is the archive of an adapter: its weights go into the slot, Adam's moments are those of a new model.
"""

# pyright: reportMissingImports=false
from pathlib import Path
from typing import Any

import jax
from flax.training.checkpoints import latest_checkpoint
from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.engine import TinkerEngine

from repairs.engine_samplers import fill_slot
from repairs.handover import DAMAGED
from repairs.shared import PREFIX

stock_load = JaxBackendImpl.load_checkpoint


def load_checkpoint(self: Any, checkpoint_path: Any, model_id: str, load_optimizer: bool) -> None:
    """Raises ValueError: damaged, without moments, or of another model; FileNotFoundError: gone."""
    if not (isinstance(checkpoint_path, Path) and checkpoint_path.is_file()):
        if latest_checkpoint(checkpoint_path) is None:
            raise FileNotFoundError(f"Training checkpoint not found in {checkpoint_path}")
        try:
            return stock_load(self, checkpoint_path, model_id, load_optimizer)
        except (KeyError, OSError, ValueError) as error:
            fix = "restore that folder, or delete it and continue from an older state"
            raise ValueError(f"{checkpoint_path} is damaged, or of another model ({error}); {fix}") from error
    if load_optimizer:
        raise ValueError("an adapter from elsewhere has no optimizer state; load it without")
    try:
        with jax.set_mesh(self.mesh):
            fill_slot(self.model, self.models[model_id].adapter_index, str(checkpoint_path))
    except (RuntimeError, TypeError, ValueError, *DAMAGED) as error:
        raise ValueError(f"the adapter does not fit {self.base_model}: {error}") from error


def with_external_paths(stock: Any) -> Any:
    def process_save_weights_for_sampler(
        self: Any, model_id: str, request_data: types.SaveWeightsForSamplerInput
    ) -> Any:
        answer = stock(self, model_id, request_data)
        if isinstance(answer, types.SaveWeightsForSamplerOutput) and request_data.path.startswith(PREFIX):
            answer.path = f"tinker://{model_id}/external_weights/{request_data.path.removeprefix(PREFIX)}"
            answer.type = "save_weights_external"
        return answer

    return process_save_weights_for_sampler


def apply() -> None:
    JaxBackendImpl.load_checkpoint = load_checkpoint
    TinkerEngine.process_save_weights_for_sampler = with_external_paths(TinkerEngine.process_save_weights_for_sampler)
