"""The verifier of trials in containers of this package: it asks whether a reward depends on what no task asked for."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any, override

import requests
from docker.errors import DockerException
from harbor.models.task.config import StepConfig, TaskConfig
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import (
    AddTestsDirError,
    DownloadVerifierDirError,
    RewardFileEmptyError,
    RewardFileNotFoundError,
    VerifierOutputParseError,
)

from harbortrainer.docker.box.archive import TooMuch
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.integrity.again import Again, GradingPlace
from harbortrainer.docker.integrity.agent_phases import SETTLE_SEC
from harbortrainer.docker.integrity.cause import Causes
from harbortrainer.docker.integrity.change import FileChange, is_made_anew
from harbortrainer.docker.integrity.layer import MOST_CHANGES
from harbortrainer.docker.integrity.own_files import REWARDS
from harbortrainer.docker.integrity.solution import SOLUTION_SEC
from harbortrainer.docker.integrity.watch import Seen, Sight
from harbortrainer.durable.disk import CANNOT_WRITE
from harbortrainer.durable.files import make_folder, write_json
from harbortrainer.errors import EnvironmentFault, UserError, one_line
from harbortrainer.harbor import boundary
from harbortrainer.venues.harbor import depends
from harbortrainer.venues.harbor.depends import Depends
from harbortrainer.venues.harbor.install import failed_install
from harbortrainer.venues.harbor.outcome import read_reward
from harbortrainer.venues.harbor.reward_files import SafeVerifier

VERIFIER = "harbortrainer.venues.harbor.grading:GradingVerifier"
VERIFICATIONS = 6.0  # of a trial at most; each of them has the task's own limit
_MOST_WITHOUT = 3  # of them, without causes; where even the last meets others, nothing tells what the reward needs
CAUSES, RECORDED, SHOWN = "causes.json", 200, 5  # in the trial's folder; the most names that it and a detail have
_BROKEN = (
    AddTestsDirError, DownloadVerifierDirError, RewardFileEmptyError, RewardFileNotFoundError,
    VerifierOutputParseError, RuntimeError, TimeoutError,
)  # fmt: skip
_OTHERS = (DockerException, requests.RequestException, UserError, EnvironmentFault)
# By task and step: whether verification ends in a container that no agent touched, paths that it changes there, and
# what it changes of its own.
_untouched: dict[str, tuple[bool, frozenset[str], frozenset[str]]] = {}
_log = logging.getLogger("harbortrainer")


def most_limits(config: TaskConfig) -> float:
    """Return times a verifier's limit, for Harbor: for all verifications, and for one run of the task's solution."""
    steps = (step.verifier.timeout_sec for step in config.steps or ())
    least = min([config.verifier.timeout_sec, *(own for own in steps if own)])
    return VERIFICATIONS + ((config.agent.timeout_sec or SOLUTION_SEC) + SETTLE_SEC) / least


class GradingVerifier(SafeVerifier):
    """Harbor's, watched. A reward above 0 that has unasked causes is measured again without them.

    The same reward: the grade stands. Otherwise the second one is the grade if the reward needs none of the work, if
    verification met a cause before the work, or if a process of the policy wrote what is verification's; else the
    trial has none, and the environment's verdict names the causes. Neither has one whose verification changed its own
    tests or reward, as that of an untouched container does not. Verification that breaks twice earns 0 where that one
    ends.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = resolve_verifier_environment_definition(self.task.config, self.task.paths, self._step)
        self._skip_tests_upload = own is not None and own.bundled_tests  # which Harbor tells its own verifier alone

    @override
    @boundary
    async def verify(self) -> VerifierResult:
        environment = self.environment
        if not isinstance(environment, DockerEngineEnvironment) or not environment.is_watchable:
            return await super().verify()
        again = Again(environment)
        try:
            first, seen = await self._first(environment)
        except _BROKEN as error:
            if not await self._may_be_policys(again, error):
                raise
            first, seen = await self._once_more(environment, error)
        if (reward := _reward(first)) <= 0:
            await self._judge_install(again)
            return first
        if not (environment.phases.found and environment.phases.found.whole):
            environment.verdict.unasked += (f"more than {MOST_CHANGES:,} changes",)
            return first
        causes = await self._causes(again, seen)
        replaced = again.replaced.intersection(one.path for one in causes.late)
        came_from = _depends(environment, seen, causes)
        await asyncio.to_thread(depends.write, self.trial_paths.trial_dir, came_from)
        unasked, without = list[str](), reward
        if causes:
            causes, without = await self._without(again, causes, reward)
            hooked = without < reward and (causes.hooked or await self._needs_no_work(again, causes, reward))
            await asyncio.to_thread(self._record, causes.names, reward, without, hooked)
            if hooked:
                return VerifierResult(rewards={"reward": max(without, 0.0)})
            unasked = causes.names if without < reward else sorted(replaced)  # the work does it again
        environment.verdict.unasked += (*unasked, *await self._altered(again, seen, causes, reward))
        return first

    async def _first(self, environment: DockerEngineEnvironment) -> tuple[VerifierResult, Seen]:
        """Verify, watched. Raises what _BROKEN has."""
        async with self._watched(environment) as sight, asyncio.timeout(self._limit_sec):
            first = await super().verify()
            if problem := read_reward(first.rewards)[1]:
                raise VerifierOutputParseError(problem)
        return first, sight.seen

    async def _once_more(self, environment: DockerEngineEnvironment, error: Exception) -> tuple[VerifierResult, Seen]:
        """Verify what broke again: reward 0 if it breaks again, else this verification counts, which is judged as any.

        A machine may have slept meanwhile; and a process of the policy must not void a grade by breaking the first.
        """
        environment.verdict.again += 1
        try:
            return await self._first(environment)
        except _BROKEN as second:
            if is_machines_fault(second) or not await environment.is_up():
                raise
            said = f"{type(error).__name__}: {one_line(str(error)[:200])}"
            about = "%s: verification broke, as it does not without the agent: reward 0 (%s)"
            _log.warning(about, self.trial_paths.trial_dir.name, said)
            return VerifierResult(rewards={"reward": 0.0}), Seen()

    async def _judge_install(self, again: Again) -> None:
        """Find out whether verification that could not install can in a container that no agent touched."""
        task, environment = self.task.paths.task_dir, self.environment
        assert isinstance(environment, DockerEngineEnvironment)
        if not await asyncio.to_thread(failed_install, task, self.trial_paths.trial_dir):
            return
        async with again.fresh(None) as place:
            ends = await self._measured(contextlib.nullcontext(place)) > -math.inf
            installs = ends and not await asyncio.to_thread(failed_install, task, place.paths.trial_dir)
        environment.verdict.installs = installs and environment.verdict.installs is not False

    async def _without(self, again: Again, causes: Causes, reward: float) -> tuple[Causes, float]:
        """The causes, and the reward without them.

        What verification meets when they are gone counts, too: a module whose compiled form it met first.
        """
        for _ in range(_MOST_WITHOUT):
            left, without = await self._once_without(again, causes)
            if without < reward or {*left.changes}.isdisjoint(causes.work):
                return causes, without
            causes = _joined(causes, left)
        return causes, -math.inf

    async def _once_without(self, again: Again, causes: Causes) -> tuple[Causes, float]:
        """What counts without the causes, and the reward; in this container if it has services that the task asks for.

        In this one, too, if it is too large for a copy. There it counts only if nothing unasked goes on.
        """
        if not causes.services:
            with contextlib.suppress(TooMuch):
                async with again.fresh(causes.unasked) as place, self._watched(place.environment) as sight:
                    without = await self._measured(contextlib.nullcontext(place))
                return await self._causes(again, sight.seen, causes.unasked), without
        async with again.in_place(causes) as place, self._watched(place.environment) as sight:
            without = await self._measured(contextlib.nullcontext(place))
        left = await self._causes(again, sight.seen, causes.unasked)
        is_clean = not (left.processes or left.tampered or left.late or left.sockets or left.mounted)
        return left, without if is_clean else -math.inf

    @contextlib.asynccontextmanager
    async def _watched(self, environment: DockerEngineEnvironment) -> AsyncIterator[Sight]:
        """Watch a verification. Folders of tests, as new ones are seen a moment later, are there before; no file is."""
        sources, _, _ = self._resolve_tests()
        selections = [self.task.file_filter.select(source) for source in sources]
        tests = EnvironmentPaths.tests_dir
        own = {str(tests / name) for one in selections for name in one.relative_paths}
        if folders := {name.parent for one in selections for name in one.relative_paths if len(name.parts) > 1}:
            with tempfile.TemporaryDirectory() as root:
                for folder in folders:
                    Path(root, "tests", folder).mkdir(parents=True, exist_ok=True)
                await environment.upload_dir(Path(root, "tests"), str(tests))
        async with environment.watched(own) as sight:
            yield sight

    async def _needs_no_work(self, again: Again, causes: Causes, reward: float) -> bool:
        """Whether the unasked changes earn the reward by themselves."""
        if causes.services or causes.may_be_work:
            return False
        with contextlib.suppress(TooMuch):
            return await self._measured(again.fresh(causes.work)) >= reward
        return False

    async def _measured(self, where: contextlib.AbstractAsyncContextManager[GradingPlace]) -> float:
        """The reward there; -inf = verification broke."""
        async with where as place:
            if isinstance(self.environment, DockerEngineEnvironment):
                self.environment.verdict.again += 1
            verifier = SafeVerifier(
                self.task, place.paths, place.environment, self.override_env, self.logger,
                verifier_env=self.verifier_env, step_name=self.step_name,
            )  # fmt: skip
            try:
                async with asyncio.timeout(self._limit_sec):
                    return _reward(await verifier.verify())
            except _BROKEN as error:
                if is_machines_fault(error):
                    raise
                return -math.inf

    async def _may_be_policys(self, again: Again, error: Exception) -> bool:
        """Whether the agent, which is not the task's solution, may have left what breaks verification.

        That of an untouched container ends, measured once a task and process.
        """
        environment = self.environment
        assert isinstance(environment, DockerEngineEnvironment)
        if environment.records_footprint or is_machines_fault(error) or not await environment.is_up():
            return False
        return (await self._of_untouched(again))[0]

    async def _altered(self, again: Again, seen: Seen, causes: Causes, reward: float) -> list[str]:
        """What the work has changed of verification's own.

        Who wrote the reward may have ended before it was looked at: then what one more verification shows counts.
        """
        found = await self._own_changes(again, seen)
        if found and found.issubset(REWARDS):
            async with again.in_place(causes) as place, self._watched(place.environment) as sight:
                is_same = await self._measured(contextlib.nullcontext(place)) >= reward
            if is_same and not (await self._causes(again, sight.seen, causes.unasked)).tampered:
                found = await self._own_changes(again, sight.seen)
        return sorted(found)

    async def _own_changes(self, again: Again, seen: Seen) -> set[str]:
        """Changes of verification's own that verification of an untouched container does not make."""
        found = {*seen.altered, *await asyncio.to_thread(again.written_by_work, seen)}
        return found.difference((await self._of_untouched(again))[2]) if found else found

    async def _of_untouched(self, again: Again) -> tuple[bool, frozenset[str], frozenset[str]]:
        key = f"{self.task.paths.task_dir} {self.step_name}"
        if key not in _untouched:
            async with again.fresh(None) as place:
                async with self._watched(place.environment) as sight:
                    ends = await self._measured(contextlib.nullcontext(place)) > -math.inf
                written = await asyncio.to_thread(again.written_by_work, sight.seen)
                own = frozenset((*sight.seen.altered, *written))
                _untouched[key] = ends, await again.changed_in(place), own
        return _untouched[key]

    async def _causes(self, again: Again, seen: Seen, undone: Collection[FileChange] = ()) -> Causes:
        """Verification itself may have made what only the layer shows: one of an untouched container tells."""
        causes = await again.causes(seen, undone)
        if any(one.path not in seen.late for one in causes.late):
            return await again.causes(seen, undone, (await self._of_untouched(again))[1])
        return causes

    @property
    def _step(self) -> StepConfig | None:
        return next((step for step in self.task.config.steps or () if step.name == self.step_name), None)

    @property
    def _limit_sec(self) -> float:
        return self._step.verifier.timeout_sec if self._step else self.task.config.verifier.timeout_sec

    def _record(self, causes: Sequence[str], first: float, without: float, hooked: bool) -> None:
        folder = self.trial_paths.trial_dir
        make_folder(folder)
        known: dict[str, Any] = {
            "reward": first, "without": without if math.isfinite(without) else None, "hooked": hooked,
            "number": len(causes), "causes": causes[:RECORDED],
        }  # fmt: skip
        write_json(folder / CAUSES, known)


def unasked(causes: tuple[str, ...]) -> str:
    """Return the detail of a trial whose reward depends on them, in one line."""
    names = [name.encode("unicode_escape").decode("ascii")[:80] for name in causes[:SHOWN]]
    more = f" and {len(causes) - SHOWN} more" if len(causes) > SHOWN else ""
    return f"the reward depends on what the task does not ask for: {', '.join(names)}{more}"


def _depends(environment: DockerEngineEnvironment, seen: Seen, causes: Causes) -> Depends:
    """Changed files that a verification opened, unasked ones first, and services of the agent that went on."""
    assert environment.phases.found is not None
    opened = seen.opened or {}
    changed = {one.path for one in environment.phases.found.changes if not is_made_anew(one.path)}
    services = [f"tcp {port} {one.name}" for one in seen.processes for port in one.ports]
    services += [f"process {one.name}" for one in seen.processes if one.ran and not one.ports]
    unasked = {one.path for one in causes.changes}
    return Depends.of(changed & opened.keys(), services, first=unasked, watched=seen.opened is not None)


def _joined(causes: Causes, left: Causes) -> Causes:
    """Causes with those of their work that count once they are gone."""
    more = tuple(one for one in causes.work if one in left.unasked)
    return dataclasses.replace(
        causes,
        changes=(*causes.changes, *more),
        unasked=(*causes.unasked, *more),
        work=tuple(one for one in causes.work if one not in more),
        hooked=causes.hooked or left.hooked,
        may_be_work=causes.may_be_work or left.may_be_work,
    )


def _reward(result: VerifierResult) -> float:
    value, _ = read_reward(result.rewards)
    return -math.inf if value is None else value


def is_machines_fault(error: BaseException) -> bool:
    """Return whether Docker, the user or a full disk caused it."""
    causes = (error, error.__cause__, error.__context__)
    return any(isinstance(one, _OTHERS) or getattr(one, "errno", None) in CANNOT_WRITE for one in causes)
