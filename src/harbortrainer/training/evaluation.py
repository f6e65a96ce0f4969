"""The held-out evaluations of a training run, beside its steps."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Self

from harbortrainer.backend.policy import PolicyTrainer, Published
from harbortrainer.policy.sampler import PolicySampler, Sampler
from harbortrainer.run.checkpoints import EVALUATION, CheckpointLog
from harbortrainer.stopping import Stop, Stopped, cancel_all, run_until

Evaluate = Callable[[Published | None, Sampler | None], Coroutine[Any, Any, None]]


MOST_OPEN = 2  # evaluations beside training: one whose trials run, and one that waits in line with its weights


class Evaluations:
    """Runs evaluations beside training, one after the other in the order of steps; use it as a context.

    Each samples one frozen sampler, the weights of its step, whatever is published meanwhile. The path of these weights
    is in a journal, so a later process ends the evaluation with the same weights, and nothing deletes them before. On a
    server without frozen samplers the weights published last are sampled, and updates wait (`over`).
    """

    def __init__(self, policy: PolicyTrainer, sampler: PolicySampler, checkpoints: CheckpointLog, stop: Stop) -> None:
        self._policy, self._sampler, self._checkpoints, self._stop = policy, sampler, checkpoints, stop
        self._turn = asyncio.Lock()
        self._open: dict[int, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._stopped = False
        self._unfinished = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._open and self._stop.asked:  # they end by themselves, perhaps after their running trials
                await asyncio.wait(self._open.values())
        finally:
            await cancel_all([*self._open.values()])
            await asyncio.sleep(0)  # their callbacks
            self._unfinished.close()

    @property
    def steps(self) -> set[int]:
        """Steps whose evaluation is open."""
        return {*self._open}

    async def open(self, step: int, run: Evaluate) -> bool:
        """Start `run` with the weights of `step`, after the evaluations before it. Waits while MOST_OPEN are open.

        False when the server does not have these weights any more. A run that is to stop opens nothing: a later process
        does. `run` gets no weights on a server without frozen samplers.
        """
        while len(self._open) >= MOST_OPEN and not self._stop.asked:
            await run_until(self._one_over(), self.failing())
        if self._stop.asked:
            self._stopped = True
            return True
        client, held = None, contextlib.ExitStack()
        weights = None
        if self._policy.frozen_samplers:
            if (client := await self._weights(step)) is None:
                return False
            weights = held.enter_context(self._sampler.pinned(client, step))
        elif step != self._sampler.version:
            return False
        task = self._open[step] = asyncio.create_task(self._in_turn(step, run(client, weights)))
        task.add_done_callback(functools.partial(self._ended, step, held))
        return True

    async def over(self) -> None:
        """Wait until none is open. Raises what ended one; Stopped where a stop ended one or kept it from opening."""
        while self._open:
            await run_until(self._one_over(), self.failing())
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise Stopped(self._stop.why)

    async def failing(self) -> NoReturn:
        """Return an end for `run_until`: raises what ended an evaluation."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    def tidy(self, last_step: int) -> None:
        """Let the server delete the weights of evaluations up to `last_step`, whose rows are logged."""
        for state, path in self._checkpoints.samplers.items():
            if state.startswith(EVALUATION) and int(state.removeprefix(EVALUATION)) <= last_step:
                self._checkpoints.drop_sampler(state)
                self._policy.discard(path)

    async def _weights(self, step: int) -> Published | None:
        """A sampler of the weights of `step`: that of the journal, else the one published last."""
        name = f"{EVALUATION}{step}"
        if (path := self._checkpoints.sampler_of(name)) is not None:
            if (client := await self._policy.sampler_at(path)) is not None:
                return client
            self._checkpoints.drop_sampler(name)
        if step != self._sampler.version:
            return None
        client, path = self._policy.newest()
        self._checkpoints.note_sampler(name, path)
        return client

    async def _in_turn(self, step: int, run: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._turn:
                await run
        finally:
            run.close()  # it may never have started

    async def _one_over(self) -> None:
        if not self._open:  # the last one ended before this began
            return
        await asyncio.wait([*self._open.values()], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # their callbacks

    def _ended(self, step: int, held: contextlib.ExitStack, task: "asyncio.Task[None]") -> None:
        del self._open[step]
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(failure, Stopped):
            self._stopped = True
        elif failure is not None:
            self._failure = self._failure or failure
            self._failed.set()
        if failure is None:
            held.close()
        else:  # a later process needs the weights: an update that ends now must not delete them
            self._unfinished.callback(held.close)
