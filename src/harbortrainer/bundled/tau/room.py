"""A run's conversations: limited like agents of other venues, without containers and without a service of their own."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

from harbortrainer.bundled.tau.domain import Domain, domain
from harbortrainer.bundled.tau.tasks import key_of
from harbortrainer.bundled.tau.trial import run_conversation
from harbortrainer.bundled.tau.user import ModelUser, NewUser, ScriptedUser, TauUser
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.rollout.slots import Slots
from harbortrainer.rollout.venue import Host, Room, RunParts, Say, TrialRequest
from harbortrainer.tasks.task import Task


class TauRoom(Host, Room):
    """Conversations of one run. What plays its users is the service whose outages count."""

    def __init__(self, run: RunParts, new_user: NewUser | None = None) -> None:
        """`new_user`: a test's user; None = that of the run, else the scripted one."""
        self._run, self._users = run, run.users
        self._new_user = new_user or self._of_run
        self._starting = asyncio.Lock()

    @property
    def outages(self) -> int:
        return 0 if self._users is None else self._users.outages

    @property
    def gate(self) -> Slots:
        """A slot for an agent, which those in containers take too."""
        return self._run.gates.running

    def host(self) -> "contextlib.nullcontext[TauRoom]":
        """Return this room: this process holds all conversations."""
        return contextlib.nullcontext(self)

    async def ready(self) -> None:
        if self._users is not None:
            await self._users.ready()

    async def suspect(self) -> None:
        if self._users is not None:
            await self._users.suspect()

    async def run(self, request: TrialRequest) -> Trajectory:
        async with self._starting:  # a batch begins at once, and a first prompt takes 10 ms: one in a round of the loop
            await asyncio.sleep(0)
        return await run_conversation(request, self._run, self._new_user)

    @contextlib.asynccontextmanager
    async def prepared(self, tasks: Sequence[Task], say: Say) -> AsyncIterator[None]:
        """Load the domains and the gold end states of these tasks, in a thread; ask users that have tools once.

        Raises UserError when what plays them takes no tools.
        """
        user_tools = await asyncio.to_thread(_load, tasks)
        if self._users is not None and user_tools:
            await self._users.check(user_tools)
        gc.collect()
        gc.freeze()  # databases: a collection in the middle of a batch need not walk through them
        yield

    def _of_run(self, domain: Domain, task: Any, seed: int) -> TauUser:
        if self._users is None:
            return ScriptedUser(domain, task, seed)
        return ModelUser(self._users.of_trial(seed), domain, task)


def _load(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The tools of users of one of the domains; [] = none has any."""
    user_tools: list[dict[str, Any]] = []
    for task in tasks:
        name, key = key_of(task)
        place = domain(name)
        place.gold(place.task(key))
        user_tools = user_tools or place.user_schemas
    return user_tools
