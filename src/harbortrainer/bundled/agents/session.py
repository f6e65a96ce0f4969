"""One trial of an agent in a container: its exchange with the policy, and how the agent ended."""

import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from harbortrainer.bundled.agents.address import PORT, PYTHONS
from harbortrainer.bundled.agents.listener import NoPython, ShutOut, listen_in, listener_problem
from harbortrainer.bundled.agents.relay import Relay
from harbortrainer.config import Config
from harbortrainer.docker.daemon import call
from harbortrainer.errors import UserError
from harbortrainer.learning.trajectory import Outcome, Turn, without_segments
from harbortrainer.learning.treatment import UNFIT
from harbortrainer.model_api.exchange import Exchange
from harbortrainer.model_api.prompts import Prompts
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.conversation import Conversation
from harbortrainer.policy.sampler import SamplingError
from harbortrainer.rollout.quarantine import SAMPLING, UNANSWERED
from harbortrainer.venues.harbor.container_agent import ContainerSession
from harbortrainer.venues.harbor.outcome import GRADED, Verdict, read_reward, without_grade

if TYPE_CHECKING:  # a web server, slow to import
    from harbor.models.trial.result import TrialResult

    from harbortrainer.model_api.service import ModelApi

FIRST_SHARE = 0.5  # of context_limit; an agent whose first prompt takes more gets nowhere
LAST_OUTPUT = 300  # characters of a program's output in a detail
NEVER_ASKED = "the agent never asked the policy"


@dataclass
class AgentSession(ContainerSession):
    """A session. `key`: the agent's API key. `failure`: what a program that failed printed; `stop_reason`: once it
    has ended.

    `shut_out`: why the API could not be opened again, which only the policy can have caused.
    """

    exchange: Exchange
    endpoint: "ModelApi"
    key: str
    failure: str = ""
    stop_reason: str = ""
    shut_out: str = ""
    _relay: Relay | None = None
    _was_open: bool = False

    @property
    def own_turns(self) -> list[Turn]:
        """Answers to the agent itself."""
        return without_segments(self.exchange.turns, self.exchange.side_segments)

    async def open(self, container: str) -> None:
        """Answer inside the container from now on; again after `close`, when the task has another step.

        Where it was open before, a container that keeps it out is the policy's doing: it ends the session. Raises
        UserError (no way into it), RuntimeError, docker.errors.DockerException.
        """
        self.endpoint.open(self.exchange, self.key)
        self.exchange.reopen()
        try:
            await self._listen(container)
        except ShutOut as error:
            if self._was_open:
                self.shut_out = str(error)
                self.exchange.end("policy_error")
            elif isinstance(error, NoPython):
                raise UserError(
                    f"{error} to a trainer that is not root beside the daemon: its image has none; set "
                    "agents_dir=FOLDER (scripts/agents/pack), or run as root"
                ) from None
            else:
                raise
        self._was_open = True

    async def _listen(self, container: str) -> None:
        listener = None if listener_problem() else await call(listen_in, container, PORT)
        if listener is None:
            self._relay = await Relay.open(container, PORT, PYTHONS, self._attach, self.exchange.fail)
        else:
            await self.endpoint.serve(listener, self.key)

    async def _attach(self, connected: socket.socket) -> None:
        await self.endpoint.attach(connected, self.key)

    async def close(self) -> None:
        """Answer nothing any more. Safe to repeat."""
        await self.endpoint.close(self.key)
        if self._relay is not None:
            await self._relay.close()

    def classify(self, result: "TrialResult") -> Verdict:
        """Get outcome, detail and reward of the finished trial; what the policy did is judged by the exchange alone."""
        exchange = self.exchange
        if (failed := exchange.fault or exchange.conversation.fault) is not None:
            prefix = SAMPLING if isinstance(failed, SamplingError) else f"{type(failed).__name__}: "
            return Outcome.INFRASTRUCTURE_ERROR, prefix + str(failed), None
        sampled = any(turn.completion_tokens_T for turn in self.own_turns)
        if (lost := without_grade(result)) is not None and (sampled or not exchange.full):
            return lost
        if not sampled:
            return Outcome.INFRASTRUCTURE_ERROR, self._silent(result), None
        reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
        if reward is None:
            return Outcome.VERIFIER_ERROR, problem, None
        if self.stop_reason == "done" and exchange.full:  # it might have shortened its history, and gave up
            return Outcome.CONTEXT_LENGTH, "", reward
        if self.stop_reason == "done" and self.failure:
            return Outcome.POLICY_ERROR, f"the agent failed: {last_words(self.failure)}", reward
        return GRADED[self.stop_reason], self.shut_out if self.stop_reason == "policy_error" else "", reward

    def _silent(self, result: "TrialResult | None" = None) -> str:
        """Why nothing was sampled for the agent. `result`: of its trial, whose folder has the program's log."""
        if self.exchange.conversation.unanswered:
            return UNANSWERED
        if full := self.exchange.full:
            return UNFIT + full
        why = NEVER_ASKED
        if self.stop_reason == "timeout" and result and (spent := result.agent_execution) and spent.finished_at:
            seconds = (spent.finished_at - spent.started_at).total_seconds() if spent.started_at else 0.0
            why += f" in the {seconds:.0f} s that it had (trial_timeout_sec, or its task's limit)"
        words = last_words(self.failure or (printed(result.trial_uri) if result else ""))
        return f"{why}{': ' if words else ''}{words}"


@dataclass
class AgentService:
    """What all trials of a run with an agent in containers share. `endpoint`: entered while trials run."""

    endpoint: "ModelApi"
    prompts: Prompts

    @classmethod
    def of(cls, template: ChatTemplate) -> "AgentService":
        """Raises UserError when the template declares no tools."""
        from harbortrainer.model_api.service import ModelApi

        return cls(ModelApi(), Prompts(template))

    @contextlib.asynccontextmanager
    async def session(self, conversation: Conversation, config: Config) -> AsyncIterator[AgentSession]:
        """Open the session of a trial, with its key; closed with the block."""
        turns, compacts = config.max_turns, config.enable_summarize
        exchange = Exchange(conversation, self.prompts, max_turns=turns, may_compact=compacts, first_share=FIRST_SHARE)
        session = AgentSession(exchange, self.endpoint, self.endpoint.open(exchange))
        try:
            yield session
        finally:
            await session.close()


def printed(trial_uri: str) -> str:
    """Return the end of what the program wrote into its newest log; "" = nothing."""
    folder = Path(unquote(urlsplit(trial_uri).path))
    found = [file for kind in ("*.txt", "*.log") for file in folder.glob(f"**/agent/{kind}")]
    logs = [file for file in found if file.is_file() and not file.is_symlink()]
    if not logs:
        return ""
    with max(logs, key=lambda file: file.stat().st_mtime).open("rb") as newest:
        newest.seek(max(0, os.fstat(newest.fileno()).st_size - 4 * LAST_OUTPUT))
        return newest.read().decode(errors="replace")


def last_words(output: str) -> str:
    """Return the end of a program's output in one line."""
    text = re.sub(r"\nstderr: None\s*$", "", output)
    return " ".join(text.split())[-LAST_OUTPUT:]
