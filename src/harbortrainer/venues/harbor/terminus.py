"""Terminus-2 as a trainable agent: a fault of the policy ends the agent without an error, and its work is graded."""

import math
import time
from typing import Any, Literal, override

from harbor.environments.base import BaseEnvironment
from harbor.llms.base import ContextLengthExceededError, LLMResponse
from harbor.llms.chat import Chat
from harbor.models.agent.context import AgentContext
from harbor.models.trial.paths import EnvironmentPaths

from harbortrainer.harbor import boundary, without_litellm
from harbortrainer.policy.chat_template import clean_text
from harbortrainer.policy.clock import Clock
from harbortrainer.policy.tinker_llm import TinkerLLM, live_llm
from harbortrainer.rollout.shown import Shown

with without_litellm():
    from harbor.agents.terminus_2.terminus_2 import Command, Terminus2
    from harbor.agents.terminus_2.terminus_json_plain_parser import (
        ParsedCommand,
        ParseResult,
        TerminusJSONPlainParser,
    )
    from harbor.agents.terminus_2.tmux_session import TmuxSession

    from harbortrainer.venues.harbor.terminal import KeysRefused, Terminal

StopReason = Literal["done", "max_turns", "context_length", "timeout", "session_ended", "policy_error", "interrupted"]
SUMMARY_ROOM = 4000  # free tokens that Terminus-2 wants for a summary; a quarter of a smaller context
LONGEST_WAIT_SEC = 60.0


class AnswerParser(TerminusJSONPlainParser):
    """A parser that never raises; counts answers that do not parse; removes text that cannot be typed, logged or
    stored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    @override
    def parse_response(self, response: str) -> ParseResult:
        try:
            result = super().parse_response(response)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            # valid JSON that breaks Harbor's parser: 5000-digit numbers, a thousand brackets, a list at the top
            result = ParseResult([], False, f"Invalid JSON: {type(error).__name__}", "")
        self.failures += bool(result.error)
        return ParseResult(
            commands=[_command(command) for command in result.commands],
            is_task_complete=bool(result.is_task_complete),
            error=clean_text(result.error),
            warning=clean_text(result.warning),
            analysis=_text(result.analysis),
            plan=_text(result.plan),
        )


def _command(command: ParsedCommand) -> ParsedCommand:
    wait = command.duration if math.isfinite(command.duration) else 1.0
    return ParsedCommand(clean_text(command.keystrokes), min(max(wait, 0.0), LONGEST_WAIT_SEC))


def _text(value: Any) -> str:
    return clean_text(value if isinstance(value, str) else str(value))


class TrainableTerminus2(Terminus2):
    """Terminus-2 with the live LLM of `llm_kwargs["name"]`. Faults of sampling and Docker end the trial."""

    MODEL_CONNECTION = None  # no provider, no key: the policy is sampled in this process

    _policy: TinkerLLM
    _terminal: Terminal
    _confirmed = False  # the policy said task_complete twice
    _looping = False

    def _init_llm(self, **named: Any) -> TinkerLLM:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._policy = live_llm(named["llm_kwargs"]["name"])
        return self._policy

    @override
    def _get_parser(self) -> AnswerParser:
        self._answers = AnswerParser()
        return self._answers

    @override
    async def set_web_tools_disabled(self, disabled: bool, environment: BaseEnvironment) -> None:
        """Do nothing: Terminus-2 has no web tools; Harbor's own method logs an error in trials without a network."""

    @override
    @boundary
    async def setup(self, environment: BaseEnvironment) -> None:
        self._session = self._terminal = Terminal(
            session_name=self.name(),
            environment=environment,
            logging_path=EnvironmentPaths.agent_dir / "terminus_2.pane",
            local_asciinema_recording_path=None,
            remote_asciinema_recording_path=None,
            pane_width=self.options.tmux_pane_width,
            pane_height=self.options.tmux_pane_height,
            extra_env=self._extra_env,
            user=environment.default_user,
        )
        await self._terminal.start()

    @override
    @boundary
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Make one attempt at the task.

        Raises SamplingError and RuntimeError (Docker), which the policy did not cause.
        """
        reason: StopReason = "interrupted"
        self._confirmed = False
        deadline = Clock(self._policy.deadline, self._policy.lost)
        try:
            async with deadline:
                await super().run(instruction, environment, context)
            reason = "done" if self._confirmed else "session_ended" if self._terminal.ended else "max_turns"
        except ContextLengthExceededError:
            reason = "context_length"
        except KeysRefused:
            reason = "policy_error"
        except TimeoutError as error:
            if not deadline.expired():  # Harbor takes a TimeoutError for the agent's own limit, after which it grades
                raise RuntimeError("the environment did not answer the terminal in time") from error
            reason = "timeout"
        finally:
            self._policy.stop_reason = reason
            self._policy.parse_failures = failures = self._answers.failures
            context.metadata = {**(context.metadata or {}), "stop_reason": reason, "parse_failures": failures}
            context.model_usage = {}  # else Harbor reads it from a file that the policy may have written

    @override
    async def _execute_commands(self, commands: list[Command], session: TmuxSession) -> tuple[bool, str]:
        shown = Shown(await self._terminal.take_turn(commands), self._limit_output_length)
        self._policy.written = shown.within
        return False, shown.texts[0]

    @override
    async def _run_agent_loop(self, initial_prompt: str, chat: Chat, original_instruction: str = "") -> None:
        self._looping = True
        try:
            await super()._run_agent_loop(initial_prompt, chat, original_instruction)
        finally:
            self._looping = False

    @override
    def _dump_trajectory(self) -> None:
        """Only at the end: Harbor rewrites the whole file after every turn, which blocks all other trials."""
        if not self._looping:
            super()._dump_trajectory()

    @override
    async def _handle_llm_interaction(
        self, chat: Chat, prompt: str, original_instruction: str = "", session: TmuxSession | None = None
    ) -> tuple[list[Command], bool, str, str, str, LLMResponse]:
        interaction = await super()._handle_llm_interaction(chat, prompt, original_instruction, session)
        self._confirmed = interaction[1] and self._pending_completion
        return interaction

    async def _query_llm(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, chat: Chat, prompt: str, original_instruction: str = "", session: TmuxSession | None = None
    ) -> LLMResponse:
        """Sample once. Harbor's own method retries without a pause and invents answers that were never sampled."""
        started = time.monotonic()
        try:
            response = await chat.chat(prompt)
        except ContextLengthExceededError:
            if not self.options.enable_summarize or session is None:
                raise
            response = await chat.chat(await self._summary(chat, original_instruction, session))
        self._api_request_times.append(1000 * (time.monotonic() - started))
        return response

    async def _summary(self, chat: Chat, instruction: str, session: TmuxSession) -> str:
        """Cut a full history, let the policy summarise it, and return the next prompt."""
        room = min(SUMMARY_ROOM, self._policy.get_model_context_limit() // 4)
        self._unwind_messages_to_free_tokens(chat, target_free_tokens=room)
        prompt, self._pending_subagent_refs = await self._summarize(chat, instruction, session)
        self._pending_handoff_prompt = prompt
        return prompt

    @override
    def _count_total_tokens(self, chat: Chat) -> int:
        return self._policy.count_tokens(chat.messages)
