"""Puts a container's system back as its image has it, before a verifier runs there. All functions block.

`docker.layer` reads what has changed, `docker.system` is the rule. What the image has is copied from it. What was added
becomes a link to nothing, which every program takes for a missing file; a shell then removes these links.
"""

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harbortrainer.docker import system
from harbortrainer.docker.beside import changes_beside
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images import Image
from harbortrainer.docker.layer import Change, ImageFiles, Kind, Layer, entry, layer_of, way
from harbortrainer.docker.one_off import one_off
from harbortrainer.docker.system import ACCOUNTS, CACHE, PACKAGES, Footprint, Place

NOTHING = "/.put-away"  # does not exist
_NOT_STARTED = ("true",)  # of a container whose files are read
_GROUPS = "/etc/group"
_MOST_RECORD = 4 * 1024 * 1024  # bytes of one package's list of files
Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Survey:
    """The system paths that a container has changed since `before`."""

    layer: Layer
    place: Place
    changes: tuple[Change, ...]

    @property
    def needs_footprint(self) -> bool:
        """Whether the task's own solution has to say which of them are work."""
        always = (_GROUPS, CACHE) if self.place.tests.users else (ACCOUNTS, _GROUPS, CACHE)
        return any(not system.is_routine(one.path) and one.path not in always for one in self.changes)

    def footprint(self) -> Footprint:
        """What a solution that ran here has changed."""
        kept = [one for one in self.changes if not one.shallow and not system.is_routine(one.path)]
        prints = {one.path: self.layer.fingerprint(one.path) for one in kept}
        made = frozenset(one.path for one in kept if one.folder and one.kind is Kind.ADDED)
        return Footprint(system.trusted(prints, self._owned()), made)

    def _owned(self) -> frozenset[str]:
        """Names of programs in the lists of files of the packages that were installed."""
        found: set[str] = set()
        for one in self.changes:
            path = PurePosixPath(one.path)
            listed = path.suffix == ".list" and str(path.parent) == "/var/lib/dpkg/info"
            if one.kind is Kind.REMOVED or not (listed or path.name == "RECORD"):
                continue
            text = (self.layer.content(one.path) or b"")[:_MOST_RECORD].decode(errors="replace")
            found.update(PurePosixPath(line.partition(",")[0]).name for line in text.splitlines() if "bin/" in line)
        return frozenset(found)


@dataclass
class Plan:
    """`copies`: from the image; `texts`: new contents; `removed`: added paths that go."""

    copies: list[Change] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """All of them but caches."""
        every = {*(one.path for one in self.copies), *self.texts, *self.removed}
        return sorted(path for path in every if not system.is_routine(path))


def survey(container: str, place: Place, before: Stamps) -> Survey:
    """Raises docker.errors.DockerException."""
    layer = layer_of(container)
    assert layer is not None
    kept = (one for one in _changes(layer, place) if one.stamp is None or before.get(one.path) != one.stamp)
    return Survey(layer, place, tuple(sorted(kept)))


def _changes(layer: Layer, place: Place) -> list[Change]:
    """All changed system paths."""
    found: dict[str, Change] = {}
    for root in place.roots:
        for change in layer.changes(root):
            if change.path in (ACCOUNTS, _GROUPS) or system.is_system(change, place, layer):
                found.setdefault(change.path, change)
    for change in changes_beside(layer, place):
        found.setdefault(change.path, change)
    return list(found.values())


def stamps(container: str, place: Place, plan: Plan | None = None) -> Stamps:
    """System paths that were written before the agent acts: by the image's entrypoint and by the agent's set-up.

    With `plan`: only those that were copied from the image. {} where only the daemon could list them: a third of a
    second is much for each trial. Raises docker.errors.DockerException.
    """
    layer = layer_of(container, listed=False)
    if layer is None:
        return {}
    found = {one.path: one.stamp for one in _changes(layer, place) if one.stamp}
    if plan is None:
        return found
    copied = {*(one.path for one in plan.copies), *plan.texts}
    return {path: stamp for path, stamp in found.items() if not copied.isdisjoint(way(path))}


def put_back(container: str, found: Survey, footprint: Footprint, image: Image, run_id: str, *, stopped: bool) -> Plan:
    """Restore everything found that the rule does not allow. A shell has to remove the plan's `removed` afterwards.

    `stopped`: the container starts before that. Raises docker.errors.APIError.
    """
    if not found.changes:
        return Plan()
    users = [user for user in ("root", image.user) if user]
    if ACCOUNTS not in footprint.paths:
        users += sorted(found.place.tests.users)
    with contextlib.ExitStack() as undo:
        source = ImageSource(image, found.layer.image, run_id, undo)
        plan = planned(found, footprint, source, users)
        apply(container, plan, found.place, source, neutralise=stopped)
    return plan


def planned(found: Survey, footprint: Footprint, image: "ImageSource", users: Sequence[str]) -> Plan:
    """What to put back: everything found that the rule does not allow."""
    plan, kept, folders = Plan(), list[str](), list[str]()
    for one in found.changes:
        if one.path in (ACCOUNTS, _GROUPS, PACKAGES, CACHE) and _text_decides(
            one, found, footprint, image, users, plan
        ):
            continue
        if system.is_allowed(one, footprint, found.layer.fingerprint, found.place):
            kept.append(one.path)
        elif one.kind is not Kind.ADDED:
            plan.copies.append(one)
        elif one.folder:
            folders.append(one.path)
        else:
            plan.removed.append(one.path)
    lead = {above for path in kept for above in map(str, PurePosixPath(path).parents)}
    plan.removed = system.topmost([*plan.removed, *(path for path in folders if path not in lead)])
    return plan


def _text_decides(
    one: Change, found: Survey, footprint: Footprint, image: "ImageSource", users: Sequence[str], plan: Plan
) -> bool:
    """Whether the file's content decided: it stays, or `plan` got what it has to be."""
    now = found.layer.content(one.path)
    if one.path == CACHE:
        return not system.misleads(now, footprint)
    if one.kind is Kind.REMOVED or now is None:
        return False
    if one.path == _GROUPS:
        return True
    before, text = image.text(one.path), now.decode(errors="surrogateescape")
    if one.path == ACCOUNTS:
        wanted = system.accounts(before or "", text, users)
    elif before is None or PACKAGES not in footprint.paths:
        return False
    else:
        wanted = system.packages(before, text, footprint)
        wanted = None if system.paragraphs(wanted) == system.paragraphs(text) else wanted
    if wanted is not None:
        plan.texts[one.path] = wanted
    return True


def apply(container: str, plan: Plan, place: Place, image: "ImageSource", *, neutralise: bool) -> None:
    """Write the copies and texts; make the removed paths links to nothing where a shell needs that to start at all.

    `neutralise`: make links of all removed paths. Raises docker.errors.APIError.
    """
    away = [path for path in plan.removed if neutralise or system.is_critical(path, place)]
    if not (plan.copies or plan.texts or away):
        return
    engine().put_archive(container, "/", _packed(_members(plan, away, image)))
    image.put_folders(container)


Member = tuple[tarfile.TarInfo, bytes | str]  # a file's content, or where it is on this machine


def _members(plan: Plan, away: Sequence[str], image: "ImageSource") -> Iterator[Member]:
    for one in sorted(plan.copies):
        yield from image.members(one)
    for path, text in plan.texts.items():
        yield tarfile.TarInfo(path.lstrip("/")), text.encode(errors="surrogateescape")
    for path in away:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, NOTHING
        yield entry, b""


def _packed(members: Iterable[Member]) -> Iterator[bytes]:
    """A tar stream, one piece a member: a folder may have gigabytes."""
    pieces = io.BytesIO()
    with tarfile.open(fileobj=pieces, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            if isinstance(content, str):
                with open(content, "rb") as file:
                    tar.addfile(info, file)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            if piece := _taken(pieces):  # an empty piece would end the stream
                yield piece
    yield _taken(pieces)


def _taken(pieces: io.BytesIO) -> bytes:
    taken = pieces.getvalue()
    pieces.seek(0)
    pieces.truncate()
    return taken


class ImageSource:
    """Reads the image's files: from its layers' folders, or from a container of the image that is never started.

    `undo` removes that container.
    """

    def __init__(self, image: Image, files: ImageFiles | None, run_id: str, undo: contextlib.ExitStack) -> None:
        self._image, self._files, self._run_id, self._undo = image, files, run_id, undo
        self._container = ""
        self._folders: list[str] = []

    def text(self, path: str) -> str | None:
        if self._files is None:
            with contextlib.suppress(FileNotFoundError), entry(self._source(), path) as (_, file):
                return file.read().decode(errors="surrogateescape")
            return None
        found = self._files.find(path)
        regular = found is not None and stat.S_ISREG(os.lstat(found).st_mode)
        return Path(found).read_text(errors="surrogateescape") if found and regular else None

    def members(self, one: Change) -> Iterator[Member]:
        """The image's entry, with all that is below it unless `one` is shallow."""
        if self._files is not None:
            yield from _members_of(one.path, self._files, deep=not one.shallow)
            return
        with contextlib.suppress(FileNotFoundError), entry(self._source(), one.path) as (info, file):
            if info.isdir() and not one.shallow:
                self._folders.append(one.path)
            info.name = one.path.lstrip("/")
            yield info, file.read()

    def put_folders(self, container: str) -> None:
        """Copy whole folders by streams, where the layers cannot be read."""
        for folder in self._folders:
            _copy_folder(self._source(), container, folder)

    def _source(self) -> str:
        if not self._container:
            self._container = self._undo.enter_context(one_off(self._image.reference, _NOT_STARTED, self._run_id))
        return self._container


def _members_of(path: str, files: ImageFiles, *, deep: bool) -> Iterator[Member]:
    found = files.find(path)
    if found is None:
        return
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:
        info = tar.gettarinfo(found, path.lstrip("/"))
    if info is None:  # a socket
        return
    info.uname = info.gname = ""
    yield info, found if info.isreg() else b""
    if info.isdir() and deep:
        for name in sorted(files.names(path)):
            yield from _members_of(f"{path}/{name}", files, deep=True)


def restore_folder(container: str, image: Image, folder: str, run_id: str) -> None:
    """Copy the image's files of `folder` into the container's. Raises docker.errors.APIError."""
    with one_off(image.reference, _NOT_STARTED, run_id) as source:
        _copy_folder(source, container, folder)


def _copy_folder(source: str, container: str, folder: str) -> None:
    chunks, _ = engine().get_archive(source, folder)
    engine().put_archive(container, str(PurePosixPath(folder).parent), chunks)
