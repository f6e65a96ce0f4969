"""Harbor's agents for containers as they are, but: none is installed in a trial, and the model API ends them."""

import asyncio
import dataclasses
import functools
import pkgutil
from typing import Any, cast

from harbor.agents.installed.base import BaseInstalledAgent, NonZeroAgentExitCodeError

from harbortrainer.bundled.agents.address import MOUNT
from harbortrainer.bundled.agents.program import Program
from harbortrainer.bundled.agents.session import AgentSession
from harbortrainer.docker.box.artifacts import CollectedEnvironment
from harbortrainer.errors import UserError
from harbortrainer.harbor import boundary, with_litellm
from harbortrainer.policy.tinker_llm import live_llm
from harbortrainer.venues.harbor.container_agent import AGENTS

GRACE_SEC = 5.0  # for an agent whose trial is over to end by itself; some try again for minutes
LATE_GRACE_SEC = 1.0  # at the deadline, which most agents learn of only when their command ends
CLEAN_SEC = 10.0  # for what Harbor does after an agent that was ended
LOG_BYTES = 2 << 20  # of an agent's log; all trials wait while it is read
_SHAPES = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, OSError)


def __getattr__(name: str) -> type[BaseInstalledAgent]:
    """The trainable class of an agent, which Harbor imports by name: only the chosen one's modules are imported."""
    for program in AGENTS.values():
        if isinstance(program, Program) and program.import_path.endswith(f":{name}"):
            return trainable(program)
    raise AttributeError(name)


@functools.cache
def trainable(program: Program) -> type[BaseInstalledAgent]:
    """Return Harbor's class of this agent with the methods of `_Trainable`."""
    with_litellm()
    harbors = pkgutil.resolve_name(program.harbors)
    own = {"program": program}
    return cast("type[BaseInstalledAgent]", type(f"Trainable{harbors.__name__}", (_Trainable, harbors), own))


class _Trainable(BaseInstalledAgent):
    """`trial`: the name under which its session is registered."""

    program: Program

    def __init__(self, *args: Any, trial: str, **named: Any) -> None:
        self._session: AgentSession = live_llm(trial)
        super().__init__(*args, **named)

    @property
    def model_connection(self) -> Any:
        """Without the host that Harbor would put on the network's allowlist: the API is inside the container."""
        return dataclasses.replace(super().model_connection, resolved_base_url=None, inferred_base_url=None)

    async def set_web_tools_disabled(self, disabled: bool, environment: Any) -> None:
        """Do what Harbor does, without its error for agents that have no such tools."""
        if self.capabilities.native_web_tools:
            await super().set_web_tools_disabled(disabled, environment)

    def get_version_command(self) -> str | None:
        """Return the version that was packed, at once; for a program of the image Harbor's own command."""
        own = super().get_version_command() or "false"
        return f"cut -s -d' ' -f2 {MOUNT}/{self.name()}.lock 2>/dev/null || {{ {own}; }}"

    async def _exec(self, environment: Any, command: str, *args: Any, **named: Any) -> Any:
        return await super()._exec(environment, f'export PATH="{MOUNT}/bin:$PATH"; {command}', *args, **named)

    async def install(self, environment: Any) -> None:
        """Install nothing: `setup` has found the program."""

    def populate_context_post_run(self, context: Any) -> None:
        """Read the agent's log as Harbor does, which a killed agent cuts off and the policy may have written."""
        try:
            if sum(file.stat().st_size for file in self.logs_dir.rglob("*") if file.is_file()) <= LOG_BYTES:
                super().populate_context_post_run(read := type(context)())
                read.model_dump_json(warnings="error")  # what Harbor cannot store would end its trial without a result
                for name, value in read:
                    setattr(context, name, value)
        except _SHAPES as error:
            self.logger.warning(f"agent={self.name()}: its log could not be read: {type(error).__name__}")
        context.model_usage = context.model_usage or {}  # else Harbor reads trajectory.json, whoever wrote it

    @boundary
    async def setup(self, environment: Any) -> None:
        """Raises UserError when the program is not there."""
        program = self.program.program
        found = await environment.exec(f'PATH="{MOUNT}/bin:$PATH"; command -v {program}')
        if found.return_code != 0:
            raise UserError(
                f"agent={self.name()}: task {environment.environment_name}: its image has no program {program}; set "
                f"agents_dir=FOLDER, filled by scripts/agents/pack FOLDER {self.program.name}"
            )
        await super().setup(environment)

    @boundary
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        """Run one session, ended when the trial is over. A program that fails is noted, and its work is graded."""
        session, reason = self._session, "interrupted"
        session.failure = ""
        work = asyncio.ensure_future(super().run(instruction, environment, context))
        over = asyncio.ensure_future(session.exchange.ended.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
            late = session.exchange.over == "timeout"
            await asyncio.wait({work}, timeout=LATE_GRACE_SEC if late else GRACE_SEC)
            reason = session.exchange.over or "done"
            failed = work.exception() if work.done() and not work.cancelled() else None
            if await _is_policys(failed, environment):
                session.failure = str(failed)
            elif work.done():
                work.result()
        finally:
            over.cancel()
            session.stop_reason = reason  # not into `context`: Harbor reads the agent's log only into an empty one
            await _end(work, environment)


async def _is_policys(error: BaseException | None, environment: Any) -> bool:
    """Whether the agent's program failed, or no command runs any more in a container that is up."""
    if type(error) is not RuntimeError:
        return isinstance(error, NonZeroAgentExitCodeError)
    return isinstance(environment, CollectedEnvironment) and await environment.is_up()


async def _end(work: asyncio.Future[None], environment: Any) -> None:
    """End Harbor's part: its program, then its copying of files, whose size the policy decides. Raises its error."""
    for _ in range(2):
        work.cancel()
        await asyncio.wait({work}, timeout=CLEAN_SEC)
    if work.done() and not work.cancelled() and not await _is_policys(work.exception(), environment):
        work.result()
