"""Repairs of skyrl 0.4.0's Tinker API server: what it does that Tinker, or the tinker SDK, does not mean.

Each is one or a few small modules of this package with a function apply(), which replaces attributes of skyrl's modules
and nothing on disk. Each names the upstream place in its docstring; server/upstream has a patch text for each defect.
Which are active: `server/launch.py --repairs`. The registry names modules without importing them, because the API
process must not load JAX.
"""

import hashlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SKYRL_VERSION = "0.4.0"  # whose seams the repairs know


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: its modules in either process, the upstream place, and what is otherwise wrong."""

    name: str
    what: str
    upstream: str
    api: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()


API, ENGINE, JAX = "skyrl/tinker/api.py", "skyrl/tinker/engine.py", "skyrl/backends/jax.py"
# In the order in which they are applied
REPAIRS = (
    Repair(
        "sdk",
        "tinker SDK 0.38 cannot sample, restore a model or list checkpoints",
        f"{API}: create_model, load_weights, asample, list_checkpoints",
        api=("api_requests", "sdk_models", "sdk_rest"),
        engine=("sdk_engine",),
    ),
    Repair(
        "own_pass",
        "a pass runs over all adapters: one bad one reaches everybody",
        f"{JAX}: JaxBackendImpl._create_loss_and_grad_fn; skyrl/tx/layers/lora.py: LoRAMixin.apply_lora",
        engine=("engine_own_pass",),
    ),
    Repair(
        "losses",
        "losses of the SDK and several targets a token are refused, losses that the SDK lacks are named",
        f"{API}: ForwardBackwardInput, TensorData; skyrl/tinker/loss_fns.py",
        api=("api_losses",),
        engine=("engine_losses",),
    ),
    Repair(
        "blocks",
        "layers are computed for all tokens of a pass at once: long contexts do not fit",
        "skyrl/tx/models/qwen3.py: Qwen3MLP; skyrl/tx/layers/attention.py, stacked.py",
        engine=("engine_blocks",),
    ),
    Repair(
        "hybrid",
        "Qwen3.5 samples wrongly from the second token on, rounds its states, and ignores gradient checkpointing",
        "skyrl/tx/models/qwen3_5.py: Qwen3_5GatedDeltaNet, Qwen3_5TextModel; skyrl/tx/utils/models.py: filter_lora",
        engine=("engine_hybrid",),
    ),
    Repair(
        "start",
        "a start computes hundreds of small programs for weights that the file replaces",
        f"{JAX}: JaxBackendImpl.__init__; skyrl/tx/layers/stacked.py: StackedDecoderLayers",
        engine=("engine_start",),
    ),
    Repair(
        "published",
        "Qwen3.5 does not start from the names and the dtype with which it is saved",
        "skyrl/tx/models/qwen3_5.py: Qwen3_5ForCausalLM; skyrl/tx/models/configs.py: ModelConfig.get_text_config",
        engine=("engine_published",),
    ),
    Repair(
        "own_step",
        "an optimizer step runs over all adapters: weight decay and NaN reach everybody's",
        f"{JAX}: JaxBackendImpl.optim_step",
        engine=("engine_own_step",),
    ),
    Repair(
        "positions",
        "scaled positions (YaRN, Llama 3.1) are computed as if they were not",
        "skyrl/tx/models/qwen3.py, llama3.py: apply_rope",
        engine=("engine_positions",),
    ),
    Repair(
        "loss_sum",
        "the loss is averaged over tokens and datums instead of summed",
        f"{JAX}: loss_for_lora, AccumulatedGradients.get_mean",
        engine=("engine_loss_sum",),
    ),
    Repair(
        "own_ratio",
        "a policy loss cannot teach tokens that were not sampled in the same pass",
        f"{JAX}: JaxBackendImpl._create_loss_and_grad_fn",
        engine=("engine_own_ratio",),
    ),
    Repair(
        "grad_clip",
        "grad_clip_norm is ignored",
        f"{API}, skyrl/tinker/types.py: AdamParams",
        api=("api_grad_clip",),
        engine=("engine_grad_clip",),
    ),
    Repair(
        "expert_adapters",
        "sampler checkpoints lose part of the adapters of expert layers",
        "skyrl/tx/utils/models.py: get_adapter_slice",
        engine=("engine_expert_adapters",),
    ),
    Repair(
        "norms",
        "in bfloat16 each layer scales a token's values by a rounded factor",
        "skyrl/tx/layers/layernorm.py: RMSNorm",
        engine=("engine_norms",),
    ),
    Repair(
        "routing",
        "experts are chosen by probabilities that are rounded to the model's dtype",
        "skyrl/tx/models/qwen3.py: Qwen3Experts",
        engine=("engine_routing",),
    ),
    Repair(
        "saves",
        "a save that is killed, or finds the disk full, leaves half a checkpoint for ever",
        f"{JAX}: JaxBackendImpl.save_checkpoint, save_sampler_checkpoint",
        engine=("engine_saves",),
    ),
    Repair(
        "samplers",
        "sampling overwrites training weights, training shows through samplers, samplers are gone after a restart",
        f"{JAX}: JaxBackendImpl.load_sampler_weights; {API}: asample",
        api=("api_samplers",),
        engine=("engine_samplers",),
    ),
    Repair(
        "padding",
        "a batch of samples that is not full runs to max_tokens",
        f"{JAX}: JaxBackendImpl.sample",
        engine=("engine_padding",),
    ),
    Repair(
        "shapes",
        "each number of datums and each of many lengths compiles another program, without a bound of its memory",
        f"{JAX}: JaxBackendImpl._model_pass, sample; skyrl/tx/utils/generator.py: GeneratorMixin.generate",
        engine=("engine_shapes", "engine_seats", "engine_waves", "engine_memory", "engine_warm_up", "engine_rehearsal"),
    ),
    Repair(
        "prompt_logprobs",
        "prompt log-probabilities lack the first entry",
        "skyrl/tx/utils/generator.py: GeneratorMixin.generate",
        engine=("engine_prompt_logprobs",),
    ),
    Repair(
        "logprobs",
        "in bfloat16 logits and log-probabilities are rounded to steps of 0.06 nats",
        "skyrl/tx/utils/logits_processor.py: LogitsProcessorMixin; skyrl/tx/layers/lora.py: LoRAEmbed.T",
        engine=("engine_logprobs",),
    ),
    Repair(
        "finite_samples",
        "a sample that is not finite is a result that no client can read",
        f"{JAX}: JaxBackendImpl.sample",
        engine=("engine_finite_samples",),
    ),
    Repair(
        "requests",
        "one bad request fails all that the engine batched with it; a locked database or a full disk ends the engine",
        f"{ENGINE}: TinkerEngine.process_batch_requests, _complete_futures",
        engine=("engine_requests",),
    ),
    Repair(
        "turns",
        "an optimizer step may overtake the pass before it; requests and results wait while the server sleeps",
        f"{ENGINE}: TinkerEngine.process_pending_requests_once; {API}: poll_futures",
        api=("api_futures",),
        engine=("engine_seating", "engine_turns"),
    ),
    Repair(
        "load",
        "nobody can see how full sampling waves are, what is compiled and how busy the GPUs are",
        f"{JAX}: JaxBackendImpl.sample",
        engine=("engine_load",),
    ),
    Repair(
        "base_model",
        "another base model than the server's is accepted",
        f"{API}: create_model, create_sampling_session",
        api=("api_base_model",),
    ),
    Repair(
        "datums",
        "malformed training data is computed with, or never answered",
        f"{API}: Datum, forward_backward",
        api=("api_datums",),
    ),
    Repair(
        "prompts",
        "prompts and sampling settings are not checked, max_tokens is obligatory, no answer ends by itself",
        f"{API}: SampleRequest, SamplingParams; skyrl/tx/utils/generator.py: GeneratorMixin.generate",
        api=("api_prompts",),
        engine=("engine_stops",),
    ),
    Repair(
        "names",
        "a name saved twice is a 409 and so retried for minutes; a request sent again meets itself",
        f"{API}: create_checkpoint, create_future, save_weights",
        api=("api_names",),
    ),
    Repair(
        "ttl",
        "checkpoints outlive their time to live",
        f"{API}: SaveWeightsRequest, SaveWeightsForSamplerRequest",
        api=("api_ttl",),
    ),
    Repair(
        "runs",
        "what a client says of its model is dropped; checkpoints cannot be published",
        f"{API}: CreateModelRequest, get_training_run",
        api=("api_runs", "api_publish"),
    ),
    Repair(
        "external",
        "adapters cannot be fetched by the SDK, nor come from elsewhere",
        f"{API}: save_weights_for_sampler, list_checkpoints; {JAX}: JaxBackendImpl.load_checkpoint",
        api=("api_external",),
        engine=("engine_external",),
    ),
    Repair(
        "prune",
        "the database, its sessions and the samplers that nobody named grow for ever",
        f"{API}: lifespan; {ENGINE}: TinkerEngine.cleanup_stale_sessions",
        api=("api_prune",),
    ),
    Repair(
        "listening",
        "all clients lose their models when the server has not listened for the time-out of a session",
        f"{ENGINE}: TinkerEngine.cleanup_stale_sessions",
        api=("api_listening",),
        engine=("engine_listening",),
    ),
    Repair(
        "leaving",
        "a model is refused while a client that has gone still holds its slot",
        f"{ENGINE}: TinkerEngine.find_single_requests",
        engine=("engine_leaving",),
    ),
    Repair(
        "capabilities",
        "the context limit is not reported",
        f"{API}: get_server_capabilities",
        api=("api_capabilities",),
    ),
    Repair(
        "restart",
        "what a killed server was doing stays undone for ever",
        f"{API}: lifespan, validate_checkpoint",
        api=("api_restart", "api_left"),
    ),
    Repair(
        "errors",
        "errors of a request are a 500 and so retried for minutes",
        f"{API}: app",
        api=("api_errors",),
    ),
    Repair(
        "vllm",
        "samples of an external vLLM are lost by restarts, of old weights, without stop ids, or refused for good",
        "skyrl/tinker/extra/external_inference.py: ExternalInferenceClient",
        api=("vllm_requests",),
    ),
)
NAMES = tuple(repair.name for repair in REPAIRS)


def chosen(text: str) -> list[str]:
    """Names in `text`: all, none, or names with commas between; `sdk`, on which others build, comes with any of them.

    Raises ValueError, one line, for an unknown name.
    """
    if text in ("all", "none"):
        return list(NAMES) if text == "all" else []
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ValueError(
            f"--repairs {text}: {', '.join(unknown) or 'no name'} unknown; all, none, or {','.join(NAMES)}"
        )
    return [name for name in NAMES if name in ("sdk", *names)]


def code_of(folder: Path) -> str:
    """A digest of the programs in the folder `server`, with the repairs."""
    found = hashlib.sha256()
    for file in sorted([*folder.glob("*.py"), *folder.glob("repairs/*.py")]):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def apply(process: str, names: Iterable[str]) -> None:
    """Applies the repairs of these names to this process, "api" or "engine"."""
    wanted = set(names)
    for repair in REPAIRS:
        if repair.name in wanted:
            for module in repair.api if process == "api" else repair.engine:
                importlib.import_module(f"repairs.{module}").apply()
