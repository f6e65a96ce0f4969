"""Decides whether tasks can be trusted: oracles must earn 1, agents that do not solve the task nothing."""
