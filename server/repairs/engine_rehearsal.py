"""A server on a GPU does once what a client's probe asks for, before it says that it is ready.

Upstream: skyrl compiles a program in the call that needs it first. On a GPU these programs take half a minute, of which
compiled ones, read from the disk at a later start, take seconds.
"""

# pyright: reportMissingImports=false
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skyrl.backends.jax import JaxBackendImpl
from skyrl.tinker import types
from skyrl.tinker.engine import TinkerEngine, prepare_model_pass_batch
from skyrl.utils.log import logger

from repairs.engine_programs import FAILURES, programs
from repairs.engine_seats import Row
from repairs.engine_warm_up import PROBED
from repairs.handover import FOLDER

NAME = "rehearsal"
RANK = 4  # a probe's
TOKENS = list(range(17))


def rehearse(backend: Any) -> None:
    """Makes an adapter as large as runs have them, and one that takes a step and is sampled. Removes them."""
    for rank in (backend.config.max_lora_rank, min(RANK, backend.config.max_lora_rank)):
        if backend.has_model(NAME):
            backend.delete_model(NAME)
        backend.create_model(NAME, types.LoraConfig(rank=rank, alpha=float(rank), seed=0))
    backend.forward_backward(prepare_model_pass_batch({NAME: (NAME, passed())}))
    adam = types.AdamParams(learning_rate=0.0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
    backend.optim_step(NAME, types.OptimStepInput(adam_params=adam))
    if not os.environ.get(FOLDER):  # else vLLM samples
        with TemporaryDirectory() as folder:
            file = Path(folder, f"{NAME}.tar.gz")
            backend.save_sampler_checkpoint(file, NAME)
            params = types.SamplingParams(temperature=1.0, max_tokens=8, seed=0)
            backend.seats.run([Row(NAME, TOKENS, params, str(file))])
    backend.delete_model(NAME)


def passed() -> types.ForwardBackwardInput:
    """Datums as a probe's."""
    ones, none = types.TensorData(data=[1.0] * len(TOKENS)), types.TensorData(data=[])
    tokens = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=TOKENS)])
    targets = types.TensorData(data=TOKENS)
    inputs = types.LossFnInputs(target_tokens=targets, weights=ones, advantages=none, logprobs=none)
    datum = types.Datum(model_input=tokens, loss_fn_inputs=inputs)
    return types.ForwardBackwardInput(data=[datum] * PROBED, loss_fn="cross_entropy")


def rehearsing(stock_init: Any) -> Any:
    def init(self: Any, config: Any) -> None:
        """Wraps TinkerEngine.__init__."""
        stock_init(self, config)
        if programs.hinted and isinstance(self.backend, JaxBackendImpl) and self.backend.mesh.size == 1:
            try:
                rehearse(self.backend)
            except FAILURES as error:
                logger.warning(f"rehearsal: {error}; a client's first calls will compile their programs")

    return init


def apply() -> None:
    TinkerEngine.__init__ = rehearsing(TinkerEngine.__init__)
