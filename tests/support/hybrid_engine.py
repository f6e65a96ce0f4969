"""What an engine computes of the tiny Qwen3.5 of hybrid_reference.

Imported in the server's environment alone, with all repairs applied.
"""

# pyright: reportMissingImports=false
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from skyrl.backends import jax as backend
from skyrl.tinker import types

from repairs import engine_gather, engine_hybrid, engine_samplers
from scripts.models import tiny_hybrid
from tests.support import hybrid_reference as reference
from tests.support.engine_programs import pass_of, sample_of

SETTINGS = {"max_lora_adapters": 2, "max_lora_rank": 8, "sample_max_num_sequences": 32, "train_micro_batch_size": 4}
Row = tuple[str, list[int]]  # adapter, prompt


class Engine:
    """`tokens`: of a block of linear attention. `only_samples`: training passes are not compiled."""

    def __init__(self, model: str, tokens: int, only_samples: bool = False) -> None:
        engine_hybrid.TOKENS = tokens
        config = backend.JaxBackendConfig(**SETTINGS, gradient_checkpointing=True, enforce_eager=only_samples)
        self.engine = backend.JaxBackendImpl(model, config, 0)
        self.files, folder = {"": ""}, Path(tempfile.mkdtemp())
        for name in reference.ADAPTERS[1:]:
            self.files[name] = str(folder / f"{name}.tar.gz")
            reference.write_adapter(name, Path(self.files[name]), tiny_hybrid.SHAPES["tiny"])

    def sampled(self, rows: list[Row], new: int, temperature: float, scored: bool = False) -> list[Any]:
        """A request for each row, all in one batch."""
        made = sample_of(types, *[len(tokens) for _, tokens in rows], new=new, scored=scored)
        for one, (_, tokens) in zip(made.all_model_inputs, rows, strict=True):
            one.chunks[0].tokens[:] = tokens
        params = [one.model_copy(update={"temperature": temperature}) for one in made.all_sampling_params]
        slices = [(str(row), "", row, row + 1, scored, 0) for row in range(len(rows))]
        paths = [self.files[name] for name, _ in rows]
        update = {"all_sampling_params": params, "all_checkpoint_paths": paths, "request_batch_slices": slices}
        done = self.engine.sample(made.model_copy(update=update))
        return [done[str(row)] for row in range(len(rows))]

    def answers(self, lengths: Iterable[int]) -> dict[str, Any]:
        """Greedy ones of all adapters in one batch: tokens and log-probabilities."""
        rows = [(name, reference.ids(length)) for length in lengths for name in reference.ADAPTERS]
        found = [one.sequences[0] for one in self.sampled(rows, reference.NEW, 0.0)]
        named = zip(rows, found, strict=True)
        return {f"{name} {len(tokens)}": [one.tokens, one.logprobs] for (name, tokens), one in named}

    def prompts(self) -> dict[str, list[float]]:
        rows = [(name, reference.ids(max(reference.LENGTHS))) for name in reference.ADAPTERS]
        found = self.sampled(rows, 1, 1.0, scored=True)
        return {name: one.prompt_logprobs[1:] for (name, _), one in zip(rows, found, strict=True)}

    def drawn(self) -> float:
        """The largest difference of sampled log-probabilities from scored ones."""
        rows = [(name, reference.ids(length)) for length in (3, 100, 129) for name in reference.ADAPTERS]
        done = [one.sequences[0] for one in self.sampled(rows, reference.NEW, 1.0)]
        texts = [(name, [*tokens, *one.tokens]) for (name, tokens), one in zip(rows, done, strict=True)]
        scores = [one.prompt_logprobs[-reference.NEW :] for one in self.sampled(texts, 1, 1.0, scored=True)]
        return float(np.abs(np.array([one.logprobs for one in done]) - np.array(scores)).max())

    def gradients(self) -> dict[str, list[float]]:
        """Of adapter one, as hybrid_reference has them."""
        config = types.LoraConfig(rank=reference.RANK, alpha=float(reference.ALPHA), seed=1)
        self.engine.create_model("m", config)
        with jax.set_mesh(self.engine.mesh):
            slot = self.engine.models["m"].adapter_index
            engine_samplers.fill_slot(self.engine.model, slot, self.files["one"])
        made = pass_of(types, *reference.TRAINED)
        for row, length in enumerate(reference.TRAINED):
            tokens = reference.ids(length + 1, seed=1)
            made.all_model_inputs[row].chunks[0].tokens[:] = tokens[:-1]
            made.all_targets[row][:], made.all_token_weights[row][:] = tokens[1:], reference.weights(length)
        self.engine.forward_backward(made)
        total = jax.tree.map_with_path(engine_gather.turned, jax.device_get(self.engine.gradients["m"].total))
        tensors = engine_gather.tensors_of(engine_gather.on_host(self.engine.own_view, total), config)
        names = reference.adapter("one", tiny_hybrid.SHAPES["tiny"])
        own = enumerate(tensors[engine_gather.PREFIX + name] for name in names)
        return {name: reference.along(one, number) for name, (number, one) in zip(names, own, strict=True)}


def main(tokens: int, only_samples: bool) -> None:
    """Prints what test_server_hybrid compares."""
    engine = Engine(sys.argv[1], tokens, only_samples)
    found: dict[str, Any] = {"answers": engine.answers(one for one in reference.LENGTHS if one <= reference.UNPADDED)}
    if not only_samples:
        found["answers"] |= engine.answers(one for one in reference.LENGTHS if one > reference.UNPADDED)
        found |= {"prompts": engine.prompts(), "drawn": engine.drawn(), "gradients": engine.gradients()}
    print("RESULT", json.dumps(found))
