"""Whether tasks can be trusted: trials of agents that must earn 1 and of agents that must earn nothing."""
