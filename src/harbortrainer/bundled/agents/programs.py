"""The agents whose programs scripts/agents/pack can pack."""

from harbortrainer.bundled.agents.program import ANTHROPIC, OPENAI, Program

_INSTALLED = "harbor.agents.installed"
_LITELLM = (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)
_OPENCODE = (("OPENCODE_DISABLE_MODELS_FETCH", "1"), ("OPENCODE_DISABLE_AUTOUPDATE", "1"))

MINI_SWE_AGENT = Program(
    "mini-swe-agent", f"{_INSTALLED}.mini_swe_agent:MiniSweAgent", "mini-swe-agent", 512, (*OPENAI, *_LITELLM)
)
CODEX = Program("codex", f"{_INSTALLED}.codex:Codex", "codex", 512, OPENAI)
OPENCODE = Program("opencode", f"{_INSTALLED}.opencode:OpenCode", "opencode", 1024, (*OPENAI, *_OPENCODE))
QWEN_CODER = Program("qwen-coder", f"{_INSTALLED}.qwen_code:QwenCode", "qwen", 1024, OPENAI)
CLAUDE_CODE = Program("claude-code", f"{_INSTALLED}.claude_code:ClaudeCode", "claude", 512, ANTHROPIC, "policy")
