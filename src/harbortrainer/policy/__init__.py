"""The policy as an agent sees it: chat template, sampler, and Harbor's LLM interface."""
