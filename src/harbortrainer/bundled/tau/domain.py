"""One domain, loaded once for a process: its policy and tools, a fresh environment a trial, its tasks' end states.

The domain's tools change tasks' databases, never the base that all trials share.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from harbortrainer.bundled.tau.calculator import refusal
from harbortrainer.bundled.tau.data import DomainData, data
from harbortrainer.bundled.tau.databases import State, changes, fresh
from harbortrainer.policy.tools import ToolCall

GREETING = "Hi! How can I help you today?"  # the agent's first message, which nobody samples
# tau2/agent/llm_agent.py, which cannot be imported without its LLM client; `bench.tau_grade` compares them.
INSTRUCTION = """You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either:
- Send a message to the user.
- Make a tool call.
You cannot do both at the same time.

Try to be helpful and always follow the policy. Always make sure you generate valid JSON only."""
PROMPT = "<instructions>\n{instruction}\n</instructions>\n<policy>\n{policy}\n</policy>"


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool returned to its caller."""

    text: str
    error: bool


class World:
    """The state that one conversation changes: an environment over databases of its own."""

    def __init__(self, environment: Any, new_call: Callable[..., Any]) -> None:
        """`new_call`: the type of calls that the environment takes."""
        self.environment = environment
        self._new_call = new_call

    def respond(self, call: ToolCall, requestor: str = "assistant") -> CallResult:
        """Run a tool for "assistant" or "user". Errors of any kind are the result's text, as in tau2.

        Nothing that a policy sends raises.
        """
        if call.name == "calculate" and (reason := refusal(call.arguments)) is not None:
            return CallResult(f"Error: {reason}", error=True)
        sent = self._new_call(name=call.name, arguments=copy.deepcopy(call.arguments), requestor=requestor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `2(3)` of calculate; values of a wrong type in a database
            message = self.environment.get_response(sent)
        return CallResult(str(message.content), message.error)

    def holds(self, assertion: Any) -> bool:
        """Return whether one of the task's assertions about the environment is met; one that raises is not."""
        try:
            return bool(self.environment.run_env_assertion(assertion, raise_assertion_error=False))
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):  # tau2 itself would crash
            return False


@dataclass(eq=False)
class Domain:
    """A domain. `base`: the shared environment."""

    data: DomainData
    base: Any
    _tasks: dict[str, Any] = field(default_factory=dict)
    _gold: dict[str, tuple[State, State]] = field(default_factory=dict)

    @cached_property
    def system_prompt(self) -> str:
        return PROMPT.format(instruction=INSTRUCTION, policy=self.base.policy)

    @cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The agent's tools in OpenAI's form."""
        return [tool.openai_schema for tool in self.base.get_tools()]

    @cached_property
    def user_schemas(self) -> list[dict[str, Any]]:
        """The user's tools; [] in domains whose user has none."""
        return [] if self.base.user_tools is None else [tool.openai_schema for tool in self.base.get_user_tools()]

    def task(self, key: str) -> Any:
        """Return the task in tau2's form."""
        if key not in self._tasks:
            self._tasks[key] = self.data.read_task(self.data.tasks[key])
        return self._tasks[key]

    def world(self, task: Any) -> World:
        """Return the environment at the start of a task."""
        environment = self._fresh()
        start = task.initial_state
        if start is not None:
            environment.set_state(start.initialization_data, start.initialization_actions, start.message_history or [])
        environment.sync_tools()
        return World(environment, self.data.new_call)

    def gold(self, task: Any) -> tuple[State, State]:
        """Return the end states of agent's and user's database after the task's own actions."""
        if task.id not in self._gold:
            world = self.world(task)
            for action in task.evaluation_criteria.actions or []:
                try:
                    world.environment.make_tool_call(
                        action.name, requestor=action.requestor, **copy.deepcopy(action.arguments)
                    )
                except Exception:  # noqa: BLE001 -- tau2 ignores whatever its own actions raise
                    continue
            self._gold[task.id] = self.state(world)
        return self._gold[task.id]

    def state(self, world: World) -> tuple[State, State]:
        """Return what a world's two databases have that the base has not."""
        found: list[State] = []
        for kit in ("tools", "user_tools"):
            now, base = getattr(world.environment, kit), getattr(self.base, kit)
            found.append({} if base is None else changes(now.db, base.db))
        return found[0], found[1]

    def _fresh(self) -> Any:
        environment = copy.copy(self.base)
        for kit in ("tools", "user_tools"):
            if (base := getattr(self.base, kit)) is not None:
                setattr(environment, kit, type(base)(fresh(base.db)))
        return environment


@cache
def domain(name: str) -> Domain:
    """Load a domain: blocks for 0.1 to 2 s at the first call. Raises UserError without the package that it needs."""
    return Domain(data(name), data(name).new_environment())
