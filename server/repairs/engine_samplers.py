"""Sampler weights in adapter slots of their own, which no training touches.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.load_sampler_weights, load_sampler_checkpoint; skyrl/tinker/engine.py,
TinkerEngine._filter_valid_requests, find_batchable_sample. There a sampler checkpoint is loaded into the slot that its
model trains in: a late first sample, or one from an older checkpoint, undoes training; later training shows through a
used sampler; and nothing can be sampled once the model is unloaded or the server restarted.
Here a second view of the model, on the same base weights, has `sampler_slots` slots, filled when a checkpoint is saved
or from its file. Where vLLM samples, only from files: this engine scores prompts for references and teachers, and what
is saved at each step would push them out.
"""

# pyright: reportMissingImports=false
import copy
import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from cloudpathlib import AnyPath
from flax import nnx
from pydantic import Field
from skyrl.backends import jax as backend
from skyrl.tinker import engine, types
from skyrl.tx.layers.lora import init_lora_adapter
from skyrl.tx.utils.models import filter_lora, load_safetensors
from skyrl.utils.log import logger
from skyrl.utils.storage import download_and_unpack

from repairs import engine_expert_adapters, shared
from repairs.engine_own_pass import base_dtype
from repairs.engine_slots import in_dtype, put, slot_is_finite, slots_of, take, with_slots
from repairs.handover import FOLDER, version

PREFIX = "base_model.model."  # of every tensor's name in a sampler checkpoint
Key = tuple[str, int, int]
stock_init = backend.JaxBackendImpl.__init__
stock_save = backend.JaxBackendImpl.save_sampler_checkpoint
stock_filter = engine.TinkerEngine._filter_valid_requests
stock_find = engine.TinkerEngine.find_batchable_sample


class BackendConfig(backend.JaxBackendConfig):
    sampler_slots: int = Field(default=2, ge=1, description="Sampler checkpoints held in memory at once")


class SamplerSlots:
    """The sampling view: slot 0 is the base model, the others a cache of sampler checkpoints, oldest use out first."""

    def __init__(self, model: nnx.Module, count: int, dtype: Any) -> None:
        self.model = with_slots(model, 1 + count)
        nnx.update(self.model, in_dtype(nnx.state(self.model, self.model.is_lora_param), dtype))
        self.parts = nnx.split(self.model, self.model.is_lora_param, ...)
        self._free = list(range(1, 1 + count))
        self._slots: OrderedDict[Key, int] = OrderedDict()
        self.held: set[int] = set()  # slots that sequences on seats use

    def has_room(self, path: str) -> bool:
        """Whether its weights are here or can come. Raises FileNotFoundError."""
        return not path or bool(self._free) or file_key(path) in self._slots or not self.held >= {*self._slots.values()}

    def load(self, paths: list[str]) -> dict[str, int]:
        """Slot of each checkpoint file; an empty path is the base model.

        Raises FileNotFoundError: a file is gone. ValueError: more files than slots, or weights that are not finite.
        """
        keys = {path: file_key(path) for path in paths if path}
        if len(keys) > len(self._free) + len(self._slots):
            raise ValueError(f"{len(keys)} samplers in one batch, more than sampler_slots")
        for key in self._slots.keys() & set(keys.values()):
            self._slots.move_to_end(key)  # so that loading evicts none that this batch uses
        for path, key in keys.items():
            if key not in self._slots:
                self._load(path, key)
        return {path: self._slots[key] for path, key in keys.items()} | {"": 0}

    def adopt(self, path: str, model: nnx.Module, index: int) -> None:
        """Copies what was just saved to `path` from the training slot at `index`, so that nothing need be read."""
        saved = take(slots_of(model), index)
        if slot_is_finite(saved):  # else reading the file says so, when it is sampled
            slot = self._make_room()
            nnx.update(self.model, put(slots_of(self.model), slot, saved))
            self._slots[file_key(path)] = self._free.pop(0)

    def _load(self, path: str, key: Key) -> None:
        fill_slot(self.model, self._make_room(), path)
        self._slots[key] = self._free.pop(0)
        logger.info(f"Loaded sampler checkpoint {path} into sampler slot {self._slots[key]}")

    def _make_room(self) -> int:
        """The first free slot; it stays free until a key is given to it."""
        if not self._free:
            oldest = next(key for key, slot in self._slots.items() if slot not in self.held)
            self._free.append(self._slots.pop(oldest))
        return self._free[0]


def file_key(path: str) -> Key:
    """Differs for every file ever saved under a name. Raises FileNotFoundError."""
    stat = AnyPath(path).stat()
    return path, getattr(stat, "st_mtime_ns", int(stat.st_mtime * 1e9)), stat.st_size


def fill_slot(model: nnx.Module, slot: int, path: str) -> None:
    """Puts the adapter of a sampler checkpoint into a slot. Raises ValueError when its weights are not finite."""
    with download_and_unpack(AnyPath(path)) as folder:
        tensors = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise ValueError(f"sampler checkpoint {Path(path).name}: weights are not finite")
        config = read_config(folder, tensors.keys())
        init_lora_adapter(model, slot, config)  # rank and scaling of every layer
        load_safetensors(
            folder,
            model.config,
            model,
            skip_lora=False,
            prefix=PREFIX,
            filter_fn=lambda path: is_saved(model, config, path),
            adapter_index=slot,
            rank=config.rank,
        )


def read_config(folder: Path, names: Any) -> types.LoraConfig:
    """Rank and alpha from adapter_config.json; which layers were trained, from the tensors' names."""
    saved = json.loads((folder / "adapter_config.json").read_text())

    def has(*parts: str) -> bool:
        return any(part in name for name in names for part in parts)

    return types.LoraConfig(
        rank=saved["r"],
        alpha=saved["lora_alpha"],
        seed=0,
        train_attn=has("self_attn"),
        train_mlp=has("mlp", "experts"),
        train_unembed=has("embed_tokens", "lm_head"),
    )


def is_saved(model: nnx.Module, config: types.LoraConfig, path: tuple) -> bool:
    """Whether skyrl's save_lora_checkpoint writes the parameter at this path."""
    lora = ("lora_A" in path or "lora_B" in path) and filter_lora(config, path)
    return lora or (model.config.mhc_expansion_rate > 1 and backend.is_connector_path(path))


def init(self: Any, base_model: str, config: BackendConfig, process_id: int) -> None:
    if config.coordinator_address or config.use_ray:
        raise ValueError("several hosts: their workers run without repairs, start the server with --repairs none")
    stock_init(self, base_model, config, process_id)
    with jax.set_mesh(self.mesh):
        self.samplers = SamplerSlots(self.model, config.sampler_slots, base_dtype(self))


def save_sampler_checkpoint(self: Any, output_path: Any, model_id: str, persist: bool = True) -> None:
    """Wraps JaxBackendImpl.save_sampler_checkpoint: what is saved will probably be sampled next."""
    stock_save(self, output_path, model_id, persist=persist)
    if not os.environ.get(FOLDER):  # by this engine
        self.samplers.adopt(str(output_path), self.model, self.models[model_id].adapter_index)


def load_sampler_weights(self: Any, prepared_batch: types.PreparedSampleBatch) -> list[int]:
    """Replaces JaxBackendImpl.load_sampler_weights: the sampling view's slot of each sequence."""
    paths = prepared_batch.all_checkpoint_paths
    slots = self.samplers.load(paths)
    return [slots[path] for path in paths]


def with_sampling_view(stock_sample: Any) -> Any:
    def sample(
        self: Any, prepared_batch: types.PreparedSampleBatch
    ) -> dict[str, types.SampleOutput | types.ErrorResponse]:
        """Wraps JaxBackendImpl.sample, which then generates with the sampling view."""
        sampling = copy.copy(self)
        sampling.graphdef, sampling.lora_params, sampling.non_lora_params = self.samplers.parts
        return stock_sample(sampling, prepared_batch)

    return sample


def is_asked_for(file: Any, wanted: str | None) -> bool:
    """Whether the file is there, in the version that was asked for (None: any)."""
    try:
        return file.exists() and (wanted is None or version(file) == wanted)
    except FileNotFoundError:  # deleted meanwhile
        return False


def filter_valid_requests(self: Any, requests: dict[str, tuple[str, Any]]) -> tuple[dict, dict]:
    """Wraps TinkerEngine._filter_valid_requests: a sampler needs its checkpoint file, not its model."""
    samplers = {
        request_id: (model_id, data)
        for request_id, (model_id, data) in requests.items()
        if model_id and isinstance(data, types.SampleInput)
    }
    errors, valid = stock_filter(self, {key: item for key, item in requests.items() if key not in samplers})
    for request_id, (model_id, data) in samplers.items():
        file = shared.sampler_file(self.config.checkpoints_base, model_id, data.checkpoint_id)
        if data.checkpoint_id and is_asked_for(file, data.weights):
            valid[request_id] = (model_id, data)
        else:
            name = f"tinker://{model_id}/sampler_weights/{data.checkpoint_id}"
            errors[request_id] = types.ErrorResponse(error=f"{name} is gone: deleted or expired", status="failed")
    return errors, valid


def find_batchable_sample(self: Any, session: Any) -> dict[str, tuple[str, types.SampleInput]]:
    """Wraps TinkerEngine.find_batchable_sample: no more samplers in one batch than there are slots."""
    found = stock_find(self, session)
    samplers = {(model_id, data.checkpoint_id): None for model_id, data in found.values() if model_id}
    now = list(samplers)[: self.backend.config.sampler_slots]
    return {
        request_id: (model_id, data)
        for request_id, (model_id, data) in found.items()
        if not model_id or (model_id, data.checkpoint_id) in now
    }


def apply() -> None:
    shared.apply_samples()
    engine_expert_adapters.apply()  # the slots hold what the files hold
    backend.JaxBackendConfig = BackendConfig
    backend.JaxBackendImpl.__init__ = init
    backend.JaxBackendImpl.save_sampler_checkpoint = save_sampler_checkpoint
    backend.JaxBackendImpl.load_sampler_weights = load_sampler_weights
    backend.JaxBackendImpl.sample = with_sampling_view(backend.JaxBackendImpl.sample)
    engine.TinkerEngine._filter_valid_requests = filter_valid_requests
    engine.TinkerEngine.find_batchable_sample = find_batchable_sample
