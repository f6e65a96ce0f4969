"""harbortrainer: GRPO over Harbor terminal tasks, trained through the Tinker API (cloud or self-hosted)."""

import os

# Read by Harbor and LiteLLM at import time: no telemetry, no price file fetched from the internet.
os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# "PyTorch was not found" is meant: the trainer tokenises, it holds no model.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
