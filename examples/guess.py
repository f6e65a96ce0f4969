"""An environment without a container: guess a number. harbortrainer train tasks_dir=examples/guess.py:VENUE:100 ..."""

import asyncio
import contextlib
import re
import time
from collections.abc import Collection, Sequence
from typing import Any

from harbortrainer import Config, Outcome, Task, Trajectory, UserError
from harbortrainer.policy.clock import Clock
from harbortrainer.policy.conversation import ContextFull, Conversation
from harbortrainer.policy.sample import SamplingError
from harbortrainer.rollout.quarantine import SAMPLING
from harbortrainer.rollout.venue import Host, Room, RunParts, TrialCancelled, TrialRequest, conversing
from harbortrainer.tasks.identity import Identity, digest_of


class GuessVenue:
    """The source `N` has a task for each number from 1 to N."""

    name = "guess"
    packages: tuple[str, ...] = ()

    def find(self, name: str) -> tuple[str, str]:
        if not name.isdecimal():
            raise UserError(f"tasks_dir=…:{name}: give the largest number, such as 100")
        return name, "1"

    def names(self, place: str) -> list[str]:
        return [f"number-{secret}" for secret in range(1, int(place) + 1)]

    def load(self, place: str, excluded: Collection[str]) -> list[Task]:
        names = [name for name in self.names(place) if name not in excluded]
        return [Task(name, f"{place} {name.removeprefix('number-')}", digest_of((place, name))) for name in names]

    def identify(self, task: Task) -> Identity:
        return Identity(task.name, task.digest, (), "")

    def check(self, tasks: Sequence[Task], config: Config, template: Any, n_trials: int) -> list[str]:
        return []

    def room(self, run: RunParts) -> "GuessRoom":
        return GuessRoom(run)


class GuessRoom(Host, Room):
    """The games of one run, all in this process."""

    def __init__(self, run: RunParts) -> None:
        self._run = run

    @property
    def gate(self) -> contextlib.AbstractAsyncContextManager[object]:
        return self._run.gates.running

    def host(self) -> "contextlib.nullcontext[GuessRoom]":
        return contextlib.nullcontext(self)

    async def run(self, request: TrialRequest) -> Trajectory:
        await self._run.gates.weights.wait()
        began, detail, reward = time.monotonic(), "", None
        with conversing(Conversation, request, self._run) as talk:
            try:
                async with Clock.of(self._run.config.trial_timeout_sec, talk.lost):
                    outcome, reward = await play(talk, str(request.task.ref), self._run.config.max_turns or 50)
            except TimeoutError:
                outcome, detail = Outcome.INFRASTRUCTURE_ERROR, "not over after trial_timeout_sec"
            except SamplingError as error:
                outcome, detail = Outcome.INFRASTRUCTURE_ERROR, SAMPLING + str(error)
            except asyncio.CancelledError:
                raise TrialCancelled(tuple(talk.turns)) from None
        task, name, turns, seconds = request.task.name, request.name, tuple(talk.turns), time.monotonic() - began
        times = {"agent": seconds, "total": seconds}
        return Trajectory(task, name, turns, reward, outcome, detail, request.attempt, times, talk.stats)


async def play(talk: Conversation, ref: str, most_turns: int) -> tuple[Outcome, float]:
    """One game. The reward is 1 for the number, else how near the last guess was."""
    most, secret = map(int, ref.split())
    said, reward = f"I think of a number from 1 to {most}. Answer with your guess alone.", 0.0
    for _ in range(most_turns):
        try:
            answer = await talk.ask([{"role": "user", "content": said}])
        except ContextFull:
            return Outcome.CONTEXT_LENGTH, reward
        if (guess := re.search(r"\d{1,9}", answer.text)) is None:
            said = "That is no number."
        elif (number := int(guess[0])) == secret:
            return Outcome.COMPLETED, 1.0
        else:
            reward = 0.5 * max(0.0, 1 - abs(number - secret) / most)
            said = "higher" if number < secret else "lower"
    return Outcome.MAX_TURNS, reward


VENUE = GuessVenue()
