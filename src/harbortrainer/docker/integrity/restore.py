"""What a container has changed since its image, and how some of it is undone. All functions block.

What the image has is copied from it. What was added becomes a link to nothing, which every program takes for a missing
file; a shell then removes these links.
"""

import contextlib
import functools
import io
import itertools
import posixpath
import re
import shlex
import tarfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from harbortrainer.docker.box.archive import entry
from harbortrainer.docker.box.one_off import one_off
from harbortrainer.docker.daemon import engine
from harbortrainer.docker.images.image import Image
from harbortrainer.docker.integrity.asked import PROGRAMS
from harbortrainer.docker.integrity.change import ChangeKind, FileChange, is_made_anew
from harbortrainer.docker.integrity.image_files import ImageFiles, way
from harbortrainer.docker.integrity.layer import MOST_CHANGES, Layer, layer_of

_MANY = 200  # paths for one rm
NOTHING = "/.put-away"  # does not exist
Stamps = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Survey:
    """What a container has changed since `before`. `whole`: not more than MOST_CHANGES."""

    layer: Layer
    changes: tuple[FileChange, ...] = ()
    whole: bool = True

    @functools.cached_property
    def contents(self) -> list[FileChange]:
        """Without folders that have entries, which are listed themselves."""
        return [one for one in self.changes if not one.folder or one.shallow or not self.layer.names(one.path)]

    @functools.cached_property
    def plain(self) -> frozenset[str]:
        """Paths at which a regular file with content is, with the image's rights if the image has it."""
        return frozenset(one.path for one in self.changes if self.layer.is_plain(one.path))

    @functools.cached_property
    def shadows(self) -> frozenset[str]:
        """Added programs of which the image has one of the same name in another folder of programs."""
        return frozenset(one.path for one in self.changes if one.kind is ChangeKind.ADDED and self._is_shadow(one.path))

    def _is_shadow(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        others = (f"{other}/{name}" for other in PROGRAMS if other != folder)
        return folder in PROGRAMS and any(self.layer.in_image(other) for other in others)

    @functools.cached_property
    def targets(self) -> dict[str, str]:
        """Of links that were added or changed: link -> path that it leads to."""
        found = {one.path: self.layer.target(one.path) for one in self.changes if not one.folder}
        return {
            path: posixpath.normpath(PurePosixPath(path).parent / target) for path, target in found.items() if target
        }

    def is_new_name(self, name: str) -> bool:
        """Return whether no file of the image has it; false where that cannot be read."""
        return self.layer.image is not None and not self.layer.image.has_name(name)

    @functools.cached_property
    def made(self) -> frozenset[str]:
        """Folders that were added."""
        return frozenset(one.path for one in self.changes if one.folder and one.kind is ChangeKind.ADDED)


def survey(container: str, before: Stamps, most: int = MOST_CHANGES) -> Survey:
    """Raises docker.errors.DockerException."""
    layer = layer_of(container)
    assert layer is not None
    kept = (one for one in _changes(layer) if one.stamp is None or before.get(one.path) != one.stamp)
    some = itertools.islice(kept, most + 1)
    found = [FileChange(one.path, one.kind, one.folder, shallow=one.shallow) for one in some]  # stamps are a third
    return Survey(layer, tuple(sorted(found[:most])), whole=layer.whole and len(found) <= most)


def _changes(layer: Layer) -> Iterator[FileChange]:
    """Without what verification makes again."""
    for name in layer.names("/"):
        if not is_made_anew(f"/{name}/any"):
            yield from (one for one in layer.changes(f"/{name}") if not is_made_anew(one.path))


def moved(container: str, made: Collection[int]) -> set[str]:
    """Return paths of changed files that are none of the inodes `made`. Raises docker.errors.DockerException."""
    layer = layer_of(container)
    assert layer is not None
    files = (one for one in itertools.islice(_changes(layer), MOST_CHANGES) if one.kind is not ChangeKind.REMOVED)
    return {one.path for one in files if not one.folder and (one.stamp is None or one.stamp[0] not in made)}


def stamps(container: str) -> Stamps:
    """Return paths that were written before the agent acts: by the image's entrypoint and by the agent's set-up.

    {} where only the daemon could list them: a third of a second is much for each trial. Raises
    docker.errors.DockerException.
    """
    layer = layer_of(container, listed=False)
    return {} if layer is None else {one.path: one.stamp for one in _changes(layer) if one.stamp}


def put_back(container: str, changes: Sequence[FileChange], source: str, image: Image, run_id: str) -> list[str]:
    """Undo changes of the container `source` in `container`. Returns scripts that remove what only hides there.

    Raises docker.errors.APIError.
    """
    layer = layer_of(source)
    assert layer is not None
    away = {one.path for one in changes if one.kind is ChangeKind.ADDED}
    added = [path for path in sorted(away) if away.isdisjoint({*way(path)} - {path})]
    with contextlib.ExitStack() as undo:
        files = ImageSource(image, layer.image, run_id, undo)
        copies = [one for one in changes if one.kind is not ChangeKind.ADDED]
        if copies or added:
            engine().put_archive(container, "/", _packed(_members(copies, added, files)))
            files.put_folders(container)
    return removal_scripts(added)


def removal_scripts(paths: Sequence[str]) -> list[str]:
    """Return scripts that remove the paths."""
    return [f"rm -rf -- {' '.join(map(_pattern, paths[at : at + _MANY]))}" for at in range(0, len(paths), _MANY)]


def _pattern(path: str) -> str:
    """`docker diff` writes U+FFFD for each byte of a name that is no UTF-8: other such names go, too."""
    return "[!!-~]*".join(map(_quoted, re.split("\ufffd+", path)))


def _quoted(path: str) -> str:
    """For a shell whose input is UTF-8: other bytes and line breaks pass through printf."""
    if re.fullmatch(r"[ -~]*", path):
        return shlex.quote(path)
    octal = "".join(f"\\0{byte:03o}" for byte in path.encode(errors="surrogateescape"))
    return f"\"$(printf %b '{octal}')\""


Member = tuple[tarfile.TarInfo, bytes | str]  # a file's content, or where it is on this machine


def _members(copies: Sequence[FileChange], away: Sequence[str], image: "ImageSource") -> Iterator[Member]:
    for one in sorted(copies):
        yield from image.members(one)
    for path in away:
        link = tarfile.TarInfo(path.lstrip("/"))
        link.type, link.linkname = tarfile.SYMTYPE, NOTHING
        yield link, b""


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

    def members(self, one: FileChange) -> Iterator[Member]:
        """Yield the image's entry, with all that is below it unless `one` is shallow."""
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
            self._container = self._undo.enter_context(one_off(self._image.reference, self._run_id))
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
    with one_off(image.reference, run_id) as source:
        _copy_folder(source, container, folder)


def _copy_folder(source: str, container: str, folder: str) -> None:
    chunks, _ = engine().get_archive(source, folder)
    engine().put_archive(container, str(PurePosixPath(folder).parent), chunks)
