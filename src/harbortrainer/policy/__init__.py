"""The policy as an agent sees it: chat template, sampler, and the interface of an agent's LLM."""
