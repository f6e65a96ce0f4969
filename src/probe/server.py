"""What the server says of itself."""

import tinker

from src.probe.bench import Bench
from src.probe.findings import Findings
from src.probe.identity import Identity

GROUP = "server"


async def measure(bench: Bench, identity: Identity, findings: Findings) -> None:
    """Sets facts context_limit and, where reported, max_rank. Raises BackendError."""
    server = identity.server
    findings.row(GROUP, "name", identity.name, "info")
    if server:
        findings.row(GROUP, "repairs", ", ".join(server.get("repairs", [])) or "none", "info")
    findings.row(GROUP, "fingerprint", identity.fingerprint, "info")
    findings.row(GROUP, "SDK", f"tinker {tinker.__version__}", "info")
    answer = await bench.wait("capabilities", bench.rest.get_server_capabilities())
    served = {model.model_name: model.max_context_length for model in answer.supported_models if model.model_name}
    findings.row(GROUP, "models", ", ".join(sorted(served)[:8]) or "none named", "info")
    limit = served.get(bench.model_name) or server.get("context_limit")
    findings.facts["context_limit"] = limit
    note = "" if limit else "context_limit is not checked"
    findings.row(GROUP, "context length", limit or "not reported", "same" if limit else "differs", note)
    findings.facts["max_rank"] = server.get("max_lora_rank")
    alpha = server.get("lora_alpha")
    findings.row(GROUP, "LoRA alpha", alpha if alpha is not None else "not reported", "info")
