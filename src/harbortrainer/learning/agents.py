"""Which agent acts in a trial, of those that `agent=a,b` names."""

import zlib

import chz

from harbortrainer.config import Config
from harbortrainer.learning.trajectory import TrialName


def agents_of(config: Config) -> list[str]:
    """Return the agents of a run, each once."""
    return list(dict.fromkeys(config.agent.split(",")))


def by_agent(config: Config) -> list[Config]:
    """Return the settings for each agent of a run."""
    return [chz.replace(config, agent=agent) for agent in agents_of(config)]


def drawn(agents: str, seed: int, trial: str) -> str:
    """Return the agent of a trial, of `a,b`: the same for its group in every process, and each in its share of a batch.

    One that is named twice acts twice as often. A held-out task has the same agent in every evaluation.
    """
    if "," not in agents:
        return agents
    name, names = TrialName.parse(trial), agents.split(",")
    batch = zlib.crc32(f"{seed}/{name.step if name.kind == 'step' else name.kind}".encode())
    return names[(batch + name.problem) % len(names)]


def of_trial(config: Config, trial: str) -> Config:
    """Return the settings of a trial, with its one agent."""
    agent = drawn(config.agent, config.seed, trial)
    return config if agent == config.agent else chz.replace(config, agent=agent)
