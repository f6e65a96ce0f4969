"""Arguments of the command `serve`."""

import chz

from harbortrainer.config import ServerSettings, ToolFormat
from harbortrainer.setting import ABOVE_0, FROM_0, PORT, field


@chz.chz
class ServeArgs(ServerSettings):
    # -- policy
    checkpoint: str | None = field(
        None, "RUN_DIR (its last), RUN_DIR@STEP or a tinker:// path; None = the base model of model_name"
    )
    model_name: str | None = field(None, "base model; None = that of checkpoint's run")
    enable_thinking: bool = field(False, "enable_thinking of chat templates that have it, as in training")
    tool_format: ToolFormat = field(
        "template", "how tools are declared to the model, as in training: template = its chat template; hermes"
    )

    # -- sampling
    temperature: float = field(1.0, "sampling temperature of every answer, 0 = greedy", check=FROM_0)
    max_tokens: int = field(2048, "most sampled tokens of an answer; a request may ask for fewer", check=ABOVE_0)
    context_limit: int = field(32000, "most tokens of prompt and answer together", check=ABOVE_0)

    # -- clients
    host: str = field("127.0.0.1", "address to listen on")
    port: int = field(8001, "port to listen on; 0 = a free one", check=PORT)
    name: str = field("policy", "name of the model that clients see")
    key: str = field(
        "SERVE_API_KEY", "environment variable with the key that clients must send; without it one is made and printed"
    )
    max_requests: int = field(64, "most requests that are answered at once; others get status 429", check=ABOVE_0)
