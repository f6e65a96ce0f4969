"""The agent with a policy that says what it is told, in an environment that is none."""

import json
from pathlib import Path
from typing import Any

from harbor.models.agent.context import AgentContext

from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.policy.tinker_llm import TinkerLLM, registered
from harbortrainer.venues.harbor.terminus import TrainableTerminus2
from tests.support.fakes import FakeEnvironment, ScriptedClient, chat_template


def answer(*keystrokes: str, complete: Any = False, wait: Any = 0.0) -> str:
    commands = [{"keystrokes": keys, "duration": wait} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


DONE = answer(complete=True)


class Rig:
    """One agent with a scripted policy in a fake environment."""

    def __init__(self, folder: Path, answers: Any, reply: Any = None, **options: Any) -> None:
        limits: dict[str, Any] = {"max_tokens": 4096, "context_limit": 30000} | {
            name: options.pop(name) for name in ("max_tokens", "context_limit") if name in options
        }
        template = chat_template()
        self.client = ScriptedClient(answers, template)
        self.sampler = PolicySampler(attempts=1)
        self.sampler.publish(self.client, 0)
        self.llm = TinkerLLM(self.sampler, template, temperature=1.0, **limits)
        self.environment: Any = FakeEnvironment(reply)
        self.context = AgentContext()
        self.folder = folder
        with registered("t", self.llm):
            self.agent = TrainableTerminus2(
                logs_dir=folder,
                model_name="fake/policy",
                llm_kwargs={"name": "t"},
                record_terminal_session=False,
                suppress_max_turns_warning=True,
                **{"max_turns": 5, "enable_summarize": False} | options,
            )

    async def run(self) -> str:
        await self.agent.setup(self.environment)
        await self.agent.run("Do it.", self.environment, self.context)
        assert self.context.metadata is not None
        return self.context.metadata["stop_reason"]

    @property
    def typed(self) -> list[str]:
        return [command for command in self.environment.commands if "send-keys" in command]
