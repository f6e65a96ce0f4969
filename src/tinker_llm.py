"""The LLM backend of Harbor's Terminus-2, of harbortrainer/policy/tinker_llm.py."""

from harbortrainer.policy.tinker_llm import TinkerLLM as TinkerLLM
