"""Keeps the task images of the daemon within so many bytes: those that are needed last, or never, are removed.

Only images that were built or pulled here for tasks are; none that a container has or that another process holds.
"""

import contextlib
import fcntl
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docker.errors import APIError, ImageNotFound

from harbortrainer.config import AUTO, Auto
from harbortrainer.docker.box.container import HOLDERS
from harbortrainer.docker.daemon import answered, engine
from harbortrainer.docker.images.builds import CACHED, REPOSITORY, fetched, prune_builds
from harbortrainer.docker.images.image import forget
from harbortrainer.docker.images.inventory import has_images, names_of
from harbortrainer.docker.images.layers import layers
from harbortrainer.docker.images.origins import is_of_registry
from harbortrainer.docker.images.steps import lock_file
from harbortrainer.docker.images.tmux_image import tmux_reference
from harbortrainer.docker.keeping.disk_guard import Space, free_space, reserve_of

GB = 1000**3  # as Docker counts
KEPT_FREE = 1.5  # times the reserve of the disk's guard: containers write, too
_NEVER = 1 << 40  # the place of an image that no task ahead needs
_HELD = "held"  # the folder of the locks of images that trials use
_log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class _Kept:
    """An image of ours. `need`: the place of the first task ahead that needs it; `created`: seconds since 1970."""

    id: str
    names: tuple[str, ...]
    need: int
    created: int

    @property
    def last_first(self) -> tuple[bool, int, int]:
        """The order of removals: what failed builds left, then the least soon needed, of these the oldest."""
        return not any(CACHED in name for name in self.names), -self.need, self.created


class ImageWindow:
    """A window of images: `make_room` before an image is made; `hold` the images that trials use. All of it blocks."""

    @answered()
    def __init__(self, images_gb: float | Auto) -> None:
        """`images_gb`: with auto all of the disk but KEPT_FREE. Raises DockerException, EnvironmentFault."""
        self._most = None if images_gb == AUTO else int(images_gb * GB)
        self._read: Callable[[], Space | None] = free_space()
        space = self._read()
        self._free = int(KEPT_FREE * reserve_of(space)) if space else 0
        self._names = cache(lambda task: tuple(names_of(task)))  # of a task's images
        self.used = 0  # bytes at the last look

    def make_room(
        self, task: Path, making: int, held: Collection[Path], ahead: Sequence[Path]
    ) -> tuple[bool, set[Path]]:
        """Return whether the images of `task` have room, and the tasks of `ahead` whose images were removed for them.

        `making`: tasks whose images are made now, this one included; `held`: tasks whose images stay; `ahead`: others
        in the order in which they are needed. Raises docker.errors.DockerException.
        """
        if has_images(task):
            return True, set()
        held = {*held, task}
        kept = self._kept({name for one in held for name in self._names(one)}, ahead)
        count = Counter(chain for one in kept for chain in layers(one.id))
        sizes = {chain: size for one in kept for chain, size in layers(one.id).items()}
        self.used, gone = sum(sizes.values()), set[str]()

        def own(one: _Kept) -> int:
            return sum(size for chain, size in layers(one.id).items() if count[chain] == 1)

        more = max(map(own, kept), default=0) * (making - 1)  # the last one may be above the limit
        limit = self._limit()
        if self.used + more > limit:
            prune_builds()
        for shared in (False, True):  # those without bytes of their own last
            for one in sorted(kept, key=lambda one: one.last_first):
                if self.used + more <= limit:
                    break
                freed = own(one)
                if one.need < 0 or gone & {*one.names} or not (freed or shared) or not self._removed(one):
                    continue
                gone |= {*one.names}
                count.subtract(layers(one.id).keys())
                self.used -= freed
        return self.used + more <= limit, {one for one in ahead if gone & {*self._names(one)}}

    def hold(self, task: Path) -> contextlib.ExitStack:
        """Keep all processes from removing the images of the task, until the result is closed."""
        stack = contextlib.ExitStack()
        for name in self._names(task):
            fcntl.flock(stack.enter_context(lock_file(name, _HELD)), fcntl.LOCK_SH)
        return stack

    def _limit(self) -> int:
        space = self._read()
        of_disk = self.used + space.free - self._free if space else 1 << 62
        return of_disk if self._most is None else min(of_disk, self._most)

    def _kept(self, held: Collection[str], ahead: Sequence[Path]) -> list[_Kept]:
        """`need` is below 0 for those that are held."""
        need = dict.fromkeys(held, -1)
        for place, task in enumerate(ahead):
            for name in self._names(task):
                need.setdefault(name, place)
        ours, found = fetched(), list[_Kept]()
        listed = [(image, [*(image["RepoTags"] or ())]) for image in engine().images()]
        for image, tags in listed:
            need |= {tmux_reference(image["Id"]): need[tag] for tag in tags if tag in need}
        for image, tags in listed:
            names = tuple(tag for tag in tags if tag.startswith(f"{REPOSITORY}:") or tag in ours or is_of_registry(tag))
            if names:
                first = min(need.get(name, _NEVER) for name in names) if len(names) == len(tags) else -1
                found.append(_Kept(image["Id"], names, first, image["Created"]))
        return found

    def _removed(self, one: _Kept) -> bool:
        """Remove an image, unless a process holds it or a container has it."""
        with contextlib.ExitStack() as locks:
            try:
                for name in one.names:
                    fcntl.flock(locks.enter_context(lock_file(name, _HELD)), fcntl.LOCK_EX | fcntl.LOCK_NB)
                HOLDERS.leave(one.id)
                for name in one.names:
                    with contextlib.suppress(ImageNotFound):
                        engine().remove_image(name)
                    forget(name)
            except BlockingIOError:
                return False
            except APIError as error:  # a container has it
                _log.debug("%s stays: %s", one.names[0], error.explanation)
                return False
        return True
