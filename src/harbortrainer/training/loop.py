"""The frame of every training loop: to the end, through outages, or to an orderly stop."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from harbortrainer.errors import ServerLost
from harbortrainer.run.ledger import Ledger
from harbortrainer.stopping import Stop, Stopped, run_until
from harbortrainer.training.outage import Outage


class Loop(Protocol):
    """A loop over steps. `proceed`: from `step` to the last step; `save`: a checkpoint of `step`."""

    step: int

    async def proceed(self) -> None: ...
    async def save(self) -> None: ...


async def run_loop(loop: Loop, outage: Outage, ledger: Ledger, stop: Stop, kept: Callable[[], None]) -> None:
    """Run the loop to its end. Raises Stopped when the run was asked to stop, after `kept` and a checkpoint.

    After a lost server the last checkpoint is restored, and the loop continues from there.
    """

    async def to_the_end() -> None:
        while True:
            try:
                return await loop.proceed()
            except ServerLost as error:
                outage.lost = True  # a stop now must not save what a broken step has left on the server
                loop.step = await run_until(outage.restore(error, loop.step), stop.stopped())
                await asyncio.to_thread(ledger.resumed, loop.step)

    with stop.polled():
        try:
            await run_until(to_the_end(), outage.gone_at_stop())
        except Stopped:
            kept()
            await outage.save_at_end(loop.step, loop.save)
            raise
