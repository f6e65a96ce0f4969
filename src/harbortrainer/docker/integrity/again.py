"""Further verifications of what an agent left: without what no task asked for, without its work, or without either."""

import asyncio
import contextlib
import posixpath
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harbor.models.trial.paths import TrialPaths

from harbortrainer.docker.box.container import committed
from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.docker.box.root_folder import Unusual, drop_attributes
from harbortrainer.docker.daemon import call
from harbortrainer.docker.integrity.accounts import LISTS, only_adds
from harbortrainer.docker.integrity.allowed import allowed
from harbortrainer.docker.integrity.asked import Asked, Footprint, is_program, sum_of
from harbortrainer.docker.integrity.cause import PASSED_LINK, Causes, Changed, causes_of
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_made_anew
from harbortrainer.docker.integrity.footprint import solutions
from harbortrainer.docker.integrity.image_files import way
from harbortrainer.docker.integrity.living import OWN, TESTS, is_common
from harbortrainer.docker.integrity.mentions import names_of, words_of, words_of_tests
from harbortrainer.docker.integrity.readers import Readers
from harbortrainer.docker.integrity.records import Records, records_of
from harbortrainer.docker.integrity.restore import Survey, moved, put_back, survey
from harbortrainer.docker.integrity.solution import footprint_of
from harbortrainer.docker.integrity.watch import Seen


@dataclass(frozen=True)
class GradingPlace:
    """The place where a further verification runs."""

    environment: DockerEngineEnvironment
    paths: TrialPaths


class Again:
    """Further verifications of a container whose agent's phase is closed.

    `replaced`: files outside the work that changed, or that the work wrote, during the verification whose causes were
    asked for.
    """

    def __init__(self, environment: DockerEngineEnvironment) -> None:
        self.replaced = frozenset[str]()
        self._environment = environment
        self._asked = Asked(None, "")
        self._known: tuple[object, set[str]] = None, set()  # of writers, what they wrote

    async def causes(self, seen: Seen, undone: Collection[FileChange] = (), own: Collection[str] = ()) -> Causes:
        """Get what the reward of the verification that was `seen` may depend on although the task does not ask for it.

        `undone`: changes of which it had nothing when it began; `own`: paths that verification changes by itself.
        The task's solution, and records of packages, are looked at only if that is needed.
        """
        found, before = self._environment.phases.found, self._environment.phases.before
        assert found is not None
        looks = seen.links or seen.changed or seen.opened is None
        now = await call(survey, self._environment.container, before) if looks else None
        if now is not None and len(now.targets.items() - found.targets.items()) < seen.links:
            seen = replace(seen, sockets=(*seen.sockets, PASSED_LINK))
        task = self._environment.task
        start = Footprint() if task is not None and await asyncio.to_thread(solutions, task) else None
        late, written = await call(self._late, seen, now, {one.path for one in undone}, own)
        if not (causes := await call(self._judged, late, written, seen, start, Records())):
            return causes
        return await call(self._judged, late, written, seen, await footprint_of(self._environment), None)

    def _late(
        self, seen: Seen, now: Survey | None, undone: Collection[str], own: Collection[str]
    ) -> tuple[list[FileChange], frozenset[str]]:
        """What processes of the policy changed during verification; which files of it they wrote or moved. Blocks.

        `now`: the container after it, where something was changed that has no event of its own.
        """
        environment = self._environment
        assert environment.phases.found is not None
        found = environment.phases.found
        in_image = found.layer.in_image
        if seen.opened is None and now is not None:
            replaced = {one.path for one in now.contents if is_common(one.path)}
        else:
            replaced = self._written(seen)
        self.replaced = frozenset(replaced.difference(own))
        late = self.replaced | seen.late | {path for path in seen.passed if not in_image(path)}
        late |= moved(environment.container, seen.made).difference(own) if seen.moved else set()
        known = {one.path for one in found.contents}.difference(undone)
        new = {path for path in late - known if not is_made_anew(path)}
        changes = [FileChange(one, ChangeKind.CHANGED if in_image(one) else ChangeKind.ADDED) for one in sorted(new)]
        if seen.changed and now is not None:
            changes += (one for one in now.contents if one.path not in {*known, *new, *now.plain, *own})
        return changes, frozenset(new)

    def written_by_work(self, seen: Seen) -> set[str]:
        """Return what programs of the agent's work wrote of verification's own. Blocks."""
        return {path for path in self._written(seen) if path.startswith(OWN)}

    def _written(self, seen: Seen) -> set[str]:
        if self._known[0] is not seen.writers:
            self._known = seen.writers, self._written_in(seen)
        return self._known[1]

    def _written_in(self, seen: Seen) -> set[str]:
        """What programs of the work wrote, and what of the image changed meanwhile, but for files that tests name."""
        found, task = self._environment.phases.found, self._environment.task
        assert found is not None
        in_image = found.layer.in_image
        written = Readers(seen, found.targets).written_by({one.path for one in found.contents})
        written |= {path for path in seen.writers if in_image(path) and not path.startswith(OWN)}
        words = words_of_tests(task) if task and written else ()
        told = {*words, *(part for word in words for part in word.split("."))}  # modules have dots

        def is_told(path: str) -> bool:
            name = posixpath.basename(path)
            if path.startswith(OWN) or in_image(path):
                return name in told and path.startswith((TESTS, "/etc/"))
            new = names_of(path, [one for one in way(path) if not in_image(one)], short=True)
            return any(found.is_new_name(one) for one in new & told)

        return {path for path in written if not is_told(path)}

    async def changed_in(self, place: GradingPlace) -> frozenset[str]:
        """Return what a container has changed since its image."""
        now = await call(survey, place.environment.container, {})
        return frozenset(one.path for one in now.changes)

    def _judged(
        self,
        late: Sequence[FileChange],
        written: frozenset[str],
        seen: Seen,
        footprint: Footprint | None,
        records: Records | None,
    ) -> Causes:
        """`written`: of `late`, files with new content. `records`: None = to be read. Blocks."""
        task = self._environment.task
        text, user = (_instructions(task), allowed(task)) if task else ("", frozenset[str]())
        tests = words_of_tests(task) if task and footprint is None else ()
        asked = self._asked = Asked(footprint, text, self._environment.workdir, user, tests)
        found, mounted = self._environment.phases.found, self._environment.phases.mounted
        assert found is not None
        asked.altered = _altered(found, seen, asked)
        if records is None:
            records = records_of(found.changes, found.layer.content, seen.opened or ())
        others = tuple(one for one, more in mounted.items() if one != "/etc/hosts" or not asked.gives_names(more))
        told, named = self._told(seen, found, {one.path for one in (*found.contents, *late)})
        changed = Changed(
            (*found.contents, *late), found.plain | written, found.shadows, found.targets, packaged=records.listed,
            about=records.about, late={one.path for one in late}, named=named, told=told,
            made=found.made, mounted=others, is_new_name=found.is_new_name, is_same=found.layer.is_same,
            is_text=lambda path: b"\0" not in (found.layer.content(path) or b"\0"),
            accounts=[] if asked.has_solution else [*_accounts(found, asked.words, told)],
            first=self._environment.phases.first.keys(),
        )  # fmt: skip
        return causes_of(changed, seen, asked)

    def _told(self, seen: Seen, found: Survey, changed: set[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Words that tell verification what to do, and changed paths that it did not open but that are among them."""
        task, closed = self._environment.task, changed.difference(seen.opened or ())
        others = any(one.pid != 1 or one.ports for one in seen.processes)
        if task is None or not (closed or seen.sockets or others):
            return frozenset(), frozenset()
        told, plain = words_of(task, seen, found.layer.of_image), found.plain
        named = (path for path in closed if not told.isdisjoint(names_of(path, found.made, short=path not in plain)))
        return told, frozenset(named)

    @contextlib.asynccontextmanager
    async def fresh(self, undone: Sequence[FileChange] | None) -> AsyncIterator[GradingPlace]:
        """Yield a new container with what the agent left, without `undone` and processes; None = without all of it.

        Raises as DockerEngineEnvironment.start does.
        """
        environment = self._environment
        assert environment.image is not None
        with tempfile.TemporaryDirectory(prefix="harbortrainer-again-") as folder:
            image = None
            if undone is not None:
                made = await call(committed, environment.container, environment.run_id)
                image = replace(environment.image, reference=made)
            name = environment.task.name if environment.task else environment.environment_name
            twin = environment.twin(f"{name}__again", Path(folder), image)
            try:
                await twin.start(force_build=False)
                if environment.network_policy != twin.network_policy:
                    await twin.set_network_policy(environment.network_policy)
                if undone is not None:
                    await self._undo(twin, undone)
                    twin.phases.takes_over(environment.phases)
                await twin.open_agent_phase()
                await twin.close_agent_phase(final=False)
                twin.default_user = environment.default_user
                yield GradingPlace(twin, twin.trial_paths)
            finally:
                await twin.stop(delete=True)

    @contextlib.asynccontextmanager
    async def in_place(self, causes: Causes) -> AsyncIterator[GradingPlace]:
        """Yield the same container without `causes`: services that the task asks for run nowhere else."""
        environment = self._environment
        await environment.phases.end([one.pid for one in causes.processes])
        held = {path for one in causes.services for path in one.writes}
        await self._undo(environment, causes.unasked, held)
        if causes.mounted:
            await environment.phases.restore_mounted()
        await environment.close_agent_phase(final=False)
        with tempfile.TemporaryDirectory(prefix="harbortrainer-again-") as folder:
            paths = TrialPaths(Path(folder))
            paths.mkdir()
            yield GradingPlace(environment, paths)

    async def _undo(
        self, to: DockerEngineEnvironment, changes: Sequence[FileChange], held: Collection[str] = ()
    ) -> None:
        """Undo `changes`, and what the first verification left but for files that services have `held` open."""
        environment = self._environment
        found, image = environment.phases.found, environment.image
        assert found is not None and image is not None
        now = await call(survey, environment.container, environment.phases.before)
        known = {one.path for one in found.changes}.union(held)
        new = [one for one in now.contents if one.path not in known and not is_made_anew(one.path)]
        undone = sorted({*changes, *new, *self._emptied(now, {*changes, *new})})
        scripts = await call(put_back, to.container, undone, environment.container, image, environment.run_id)
        with contextlib.suppress(Unusual):  # where this process is not root, none is seen
            await call(drop_attributes, to.container, [one.path for one in undone if one.kind is ChangeKind.CHANGED])
        for script in scripts:
            await to.exec(script, user="root")

    def _emptied(self, now: Survey, undone: Collection[FileChange]) -> Iterator[FileChange]:
        """Folders in which nothing stays that was made, for which the task does not ask."""
        used = {above for one in {*now.contents}.difference(undone) for above in way(one.path)}
        emptied = {above for one in undone for above in way(one.path)} - used
        made = (one for one in now.changes if one.folder and one.kind is ChangeKind.ADDED)
        return (one for one in made if one.path in emptied and not self._asked.allows(one.path))


def _altered(found: Survey, seen: Seen, asked: Asked) -> set[str]:
    """Links to verification's own files; programs of the solution with other content that what runs tests met first."""
    own = (*OWN, "/proc/")
    targets = ((link, f"{target.rstrip('/')}/") for link, target in found.targets.items())
    links = {link for link, to in targets if any(to.startswith(one) or one.startswith(to) for one in own)}
    opened, readers = seen.opened or {}, Readers(seen, found.targets)
    changed = [one.path for one in found.changes if one.path in opened]
    work = (opened[path] for path in changed if not is_program(path) and asked.allows(path))
    first = min(work, default=len(opened))
    early = (path for path in changed if path in asked.sums and opened[path] < first and readers.are_before_tests(path))
    return links | {path for path in early if asked.sums[path] != sum_of(path, found.layer.content(path))}


def _accounts(found: Survey, words: Collection[str], told: Collection[str]) -> Iterator[str]:
    """Lists of accounts, and their copies, that differ from the image's by accounts alone that are the work's."""
    changed = {one.path for one in found.changes}
    for path in LISTS:
        for copy in changed & {path, f"{path}-"}:
            old = found.layer.original(path) or b""
            if only_adds(old, found.layer.content(copy), words, told):
                yield copy


def _instructions(task: Path) -> str:
    files = [task / "instruction.md", *sorted(task.glob("steps/*/instruction.md"))]
    return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
