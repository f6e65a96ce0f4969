"""The venue of Harbor's trials: container, agent, verifier."""
