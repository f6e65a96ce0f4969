"""Agents with a client of their own, in a task's container, as trials use them: `harbortrainer.agents` holds them."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from harbortrainer.config import Config
from harbortrainer.errors import UserError
from harbortrainer.learning.agents import by_agent
from harbortrainer.model_api.exchange import Exchange
from harbortrainer.plugins import Brought, known, plugin
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.tinker_llm import TinkerLLM
from harbortrainer.venues.harbor.outcome import Verdict

if TYPE_CHECKING:  # slow to import
    from harbor.models.trial.result import TrialResult

TERMINUS = "terminus-2"  # acts from this process


class ContainerSession(ABC):
    """One trial of an agent. `key`: what the agent shows as its API key."""

    exchange: Exchange
    key: str

    @abstractmethod
    async def open(self, container: str) -> None:
        """Answer inside the container from now on; again after `close`, when the task has another step."""

    @abstractmethod
    async def close(self) -> None:
        """Answer nothing any more. Safe to repeat."""

    @abstractmethod
    def classify(self, result: "TrialResult") -> Verdict:
        """Get outcome, detail and reward of the finished trial."""


class ContainerService(Protocol):
    """What all trials of a run share. `endpoint`: entered while trials run."""

    @property
    def endpoint(self) -> AbstractAsyncContextManager[object]: ...

    def session(self, conversation: Conversation, config: Config) -> AbstractAsyncContextManager[ContainerSession]:
        """Open the session of a trial, closed with the block."""
        ...


class ContainerAgent(ABC):
    """An agent. `memory_mb`: its memory beside the work; `model`: the model's name as the agent is given it.

    `import_path`: MODULE:NAME of the class that Harbor makes, with the trial's name as its argument `trial`.
    """

    name: str
    memory_mb: int
    model: str

    @property
    @abstractmethod
    def import_path(self) -> str: ...

    @abstractmethod
    def environment(self, key: str) -> dict[str, str]:
        """Return variables of its process."""

    @abstractmethod
    def mounts(self, config: Config) -> list[dict[str, Any]]:
        """Return the mounts of its programs, the same for every trial."""

    @abstractmethod
    def check(self, config: Config) -> None:
        """Raises UserError for settings with which it cannot run."""

    @abstractmethod
    def service(self, template: ChatTemplate) -> ContainerService:
        """Make what answers all agents of a run. Raises UserError when the template declares no tools."""

    @abstractmethod
    def like(self, brought: Brought) -> "ContainerAgent":
        """Return the agent of a class of Harbor's, which a setting gives by itself. Raises UserError."""


Policy = TinkerLLM | ContainerSession  # what a trial's agent asks
AGENTS: dict[str, ContainerAgent] = {}  # by name, once a setting has named them


def answering(policy: Policy) -> TinkerLLM | Exchange:
    """Return what gives the agent its answers, until its deadline, and records them."""
    return policy.exchange if isinstance(policy, ContainerSession) else policy


def agent_of(config: Config) -> ContainerAgent | None:
    """Return the agent in containers that `config` names, one; None: Terminus-2, in this process. Raises UserError."""
    return None if config.agent == TERMINUS else named("agent", config.agent)


def named(field: str, agent: str) -> ContainerAgent:
    """Return the agent in containers that a setting names. Raises UserError.

    A class that is no ContainerAgent is made one by the first agent that is known: this package's own come first.
    """
    brought = plugin("agents", field, agent)
    made = brought.value
    if not isinstance(made, ContainerAgent):
        made = plugin("agents", field, known("agents")[0]).value.like(brought)
    if (first := AGENTS.setdefault(made.name, made)) != made:
        raise UserError(f"{brought.given}: its name {made.name} is that of {first}; give it another")
    return made


def agent_memory(config: Config) -> int:
    """Get most MB that an agent of the run takes in the container, beside the task's; 0: it acts from this process."""
    return max(agent.memory_mb if (agent := agent_of(one)) else 0 for one in by_agent(config))


def check_agent(config: Config) -> None:
    """Raises UserError for settings of agents that cannot run, or not together."""
    configs = by_agent(config)
    if len(configs) > 1 and config.agent_kwargs:
        raise UserError(
            f"agent_kwargs={config.agent_kwargs}: options of one agent, and agent={config.agent} names several; leave "
            "agent_kwargs out, or name one agent"
        )
    agents = list(filter(None, map(agent_of, configs)))
    if not agents:
        for name, value in (("agent_kwargs", config.agent_kwargs), ("agents_dir", config.agents_dir)):
            if value:
                raise UserError(f"{name}={value}: agent={TERMINUS} has none; choose another agent, or leave it out")
    for agent in agents:
        agent.check(config)
