"""The wires: what clients send and expect, as pure functions. Chat completions, responses, Anthropic messages."""
