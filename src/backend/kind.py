"""The two kinds of server behind the field `backend`: what differs before one of them has answered."""

from dataclasses import dataclass

from src.config import Config


@dataclass(frozen=True, slots=True)
class ServerKind:
    name: str
    needs_key: bool
    context_limit: int | None  # tokens, when the server does not say
    architectures: frozenset[str] | None  # model classes it has, as in config.json; None = whatever it lists
    scaled_positions: bool = True  # knows rope_scaling (YaRN, Llama 3.1): without, such a model is another one
    answers_of_powers: bool = False  # it compiles for every length of an answer: a cut one has a power of two
    families: tuple[str, ...] = ()  # fragments of model names, where config.json cannot be read


CLOUD = ServerKind(name="Tinker cloud", needs_key=True, context_limit=32000, architectures=None)
SELF_HOSTED = ServerKind(
    name="the self-hosted server",
    needs_key=False,
    context_limit=None,
    architectures=frozenset(
        {
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "LlamaForCausalLM",
            "Llama3ForCausalLM",
            "DeepseekV3ForCausalLM",
            "Glm4MoeLiteForCausalLM",
        }
    ),
    scaled_positions=False,
    answers_of_powers=True,
    families=("qwen3", "llama-3", "smollm2", "deepseek-v3"),
)


def kind_of(config: Config) -> ServerKind:
    return SELF_HOSTED if config.backend == "skyrl-tx" else CLOUD
