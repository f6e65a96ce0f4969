"""Everything outside of the process that a run uses; tests pass their own Outside."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbortrainer.backend.connect import Api, Backend, Measure, Say, connect
from harbortrainer.backend.contract import Contract, ServerKind
from harbortrainer.backend.load import say_what_compiles
from harbortrainer.backend.sessions import Session
from harbortrainer.config import RunSettings, ToolFormat
from harbortrainer.other_models.chat_client import ChatClient, OpenChatClient
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.report.write import leave_report
from harbortrainer.rollout.quarantine import RETRIES, Retries
from harbortrainer.rollout.venue import Venue
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.metrics import RowSink
from harbortrainer.watch.display import Display
from harbortrainer.watch.wandb_log import start_wandb

log = logging.getLogger("harbortrainer")
StartWandb = Callable[[RunDirectory, str | None, str | None, dict[str, Any], Say], RowSink | None]


async def measured(session: Session, kind: ServerKind, model_name: str, say: Say) -> Contract:
    """Return the contract that the server's probe finds. Raises UserError, BackendError."""
    from harbortrainer.probe.probe import contract_of  # its requests need the SDK, which takes a second to import

    return await contract_of(session, kind, model_name, say)


@dataclass(frozen=True, slots=True)
class Outside:
    """The real one by default. `venues`: replace those of the registry."""

    api: Api = field(default_factory=Api)
    measure: Measure = measured
    load_template: Callable[[str, bool, ToolFormat], ChatTemplate] = ChatTemplate.load
    venues: Mapping[str, Venue] = field(default_factory=dict)
    open_endpoint: OpenChatClient = ChatClient  # of simulated user and judge
    start_wandb: StartWandb = start_wandb
    leave_report: Callable[[Path], str] = leave_report
    retries: Retries = RETRIES

    async def connect(self, config: RunSettings, say: Say = log.info) -> Backend:
        """Return a server that answered, with its measured contract. Raises UserError."""
        return await connect(config, self.measure, self.api, say)

    @contextlib.asynccontextmanager
    async def connected(self, config: RunSettings, display: Display) -> AsyncIterator[Backend]:
        """Connect like `connect`; closes the server's session at the end of the block."""
        display.doing(f"connecting to the {config.backend} server")
        backend, done = await self.connect(config, display.say), False
        display.server_load = backend.load
        saying = asyncio.create_task(say_what_compiles(backend.load, display.say), name="what compiles")
        try:
            yield backend
            done = True
        finally:
            saying.cancel()
            await backend.close(done=done)
