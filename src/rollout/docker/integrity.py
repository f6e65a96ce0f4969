"""Before a verifier runs in the agent's container: what it runs itself is the image's again. All functions block."""

import contextlib
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from docker.errors import NotFound

from src.rollout.docker import owner, tools
from src.rollout.docker.belongings import remove_container
from src.rollout.docker.container import container_name
from src.rollout.docker.engine import engine
from src.rollout.docker.images import Image
from src.rollout.docker.layer import layer_of, touched
from src.rollout.docker.tools import Tools

_ACCOUNTS = ("/etc/passwd", "/etc/group")  # the task may change them; without them nothing starts
_LIBRARY_PATH = re.compile(rb"/[^\0]*\.so[^\0]*")


def restore_tools(container: str, image: Image, path: tuple[str, ...], run_id: str) -> list[str]:
    """Put back what was replaced or hidden of the programs that verification runs; which paths that was.

    `path`: the folders of PATH. Other programs, packages and libraries stay as they are. The container may be stopped.
    Raises docker.errors.APIError.
    """
    layer = layer_of(container)
    folders = [*path, *tools.LIBRARY_DIRS, *tools.OTHER_DIRS]
    found = touched(layer, folders, tools.CONFIGURATION)
    lost = [file for file in _ACCOUNTS if layer.removed(file)]
    above = set(tools.ways(folders))
    if not lost and not any(_matters(entry, above) for entry in found):
        return []
    known = tools.tools_of(image, path, run_id)
    lost_folders = found & above
    made = [folder for folder in sorted(known.folders) if _below(folder, lost_folders)]
    copies = {file for file in known.files | known.links if file in found or _below(file, lost_folders)} | {*lost}
    if tools.CACHE in found and not _misleads(container, known):
        copies.discard(tools.CACHE)
    links = _shadows(found, known, path)
    links |= {file: "/dev/null" for file in (tools.PRELOAD, tools.CACHE) if file in found and file not in known.files}
    if copies or links or made:
        engine().put_archive(container, "/", _archive(image, made, sorted(copies), links, run_id))
    return sorted({*copies, *links, *lost_folders})


def restore_folder(container: str, image: Image, folder: str, run_id: str) -> None:
    """Add the image's files of `folder` to what is there. Raises docker.errors.APIError."""
    with _pristine(image, run_id) as source:
        chunks, _ = engine().get_archive(source, folder)
        engine().put_archive(container, str(PurePosixPath(folder).parent), b"".join(chunks))


def _matters(entry: str, above: set[str]) -> bool:
    name, parent = PurePosixPath(entry).name, str(PurePosixPath(entry).parent)
    if entry in above or entry in tools.CONFIGURATION or tools.is_tool(name):
        return True
    return parent in tools.LIBRARY_DIRS and tools.is_library(name)


def _below(path: str, folders: set[str]) -> bool:
    """Whether `path` is one of `folders` or in one."""
    return path in folders or any(str(parent) in folders for parent in PurePosixPath(path).parents)


def _shadows(found: set[str], known: Tools, path: Sequence[str]) -> dict[str, str]:
    """What the image does not have and would be taken for one of its own -> what to make a link to."""
    links: dict[str, str] = {}
    for entry in found:
        name, parent = PurePosixPath(entry).name, str(PurePosixPath(entry).parent)
        if entry in known.files or _below(entry, {*known.links}):
            continue
        if parent in path and name in known.first and not tools.may_be_shadowed(name):
            links[entry] = known.first[name]
        elif parent in tools.LIBRARY_DIRS and name in known.libraries:
            links[entry] = known.libraries[name]
    return links


def _misleads(container: str, known: Tools) -> bool:
    """Whether the loader's cache sends the tools to libraries of somebody else."""
    try:
        info, content = _content(container, tools.CACHE)
    except NotFound:
        return True
    if not info.isfile():
        return True
    cached = _LIBRARY_PATH.findall(content)
    for file in {PurePosixPath(found.decode(errors="replace")) for found in cached}:
        known_place = str(file) in known.files or f"/usr{file}" in known.files
        if file.name in known.libraries and not known_place and str(file.parent) not in tools.LIBRARY_DIRS:
            return True
    return False


def _archive(image: Image, folders: Sequence[str], copies: Sequence[str], links: dict[str, str], run_id: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar, _pristine(image, run_id) as source:
        for folder in folders:
            tar.addfile(_entry(folder, tarfile.DIRTYPE))
        for path in copies:
            info, content = _content(source, path)
            info.name = path.lstrip("/")
            tar.addfile(info, io.BytesIO(content))
        for path, target in links.items():
            info = _entry(path, tarfile.SYMTYPE)
            info.linkname = target
            tar.addfile(info)
    return buffer.getvalue()


def _entry(path: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type, info.mode = kind, 0o755
    return info


@contextlib.contextmanager
def _pristine(image: Image, run_id: str) -> Iterator[str]:
    """Name of a container of the image that never starts."""
    name = container_name("pristine")
    engine().create_container(image.reference, name=name, command=["true"], labels=owner.labels(run_id))
    try:
        yield name
    finally:
        remove_container(name)


def _content(container: str, path: str) -> tuple[tarfile.TarInfo, bytes]:
    """One file or link. Raises docker.errors.NotFound."""
    chunks, _ = engine().get_archive(container, path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r:") as tar:
        member = tar.next()
        if member is None:
            raise tarfile.ReadError(f"{path}: an empty archive")
        file = tar.extractfile(member) if member.isfile() else None
        return member, file.read() if file else b""
