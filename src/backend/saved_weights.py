"""Weights that lie on the server: listed, deleted, and how long they live there."""

import asyncio
import logging
from collections.abc import Collection

import tinker

from src.backend.connect import Backend
from src.backend.faults import SDK_ERRORS, plain
from src.backend.limits import CALL_LIMIT_SEC, CLOSE_LIMIT_SEC

log = logging.getLogger("harbortrainer")


class SavedWeights:
    """What goes wrong here costs room on the server, never a run: it is logged, and tried again at the next resume."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._background: set[asyncio.Task[None]] = set()

    async def delete(self, path: str) -> None:
        """Delete saved weights; what is gone already is no fault."""
        try:
            await asyncio.wait_for(self._backend.rest.delete_checkpoint_from_tinker_path(path), CALL_LIMIT_SEC)
        except tinker.NotFoundError:
            return
        except (TimeoutError, *SDK_ERRORS) as error:
            log.warning("could not delete %s: %s", path, plain(error))

    def delete_later(self, path: str) -> None:
        """Delete in the background; `close` waits for it."""
        task = asyncio.create_task(self.delete(path), name=f"delete {path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Finish deletions under way; never waits long."""
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_LIMIT_SEC)

    async def delete_others(self, model_id: str, keep: Collection[str]) -> int | None:
        """Delete all weights of a model but those whose paths are in `keep`.

        Returns how many it had to delete; None when the server could not be asked.
        """
        listed = await self._listed(model_id)
        if listed is None:
            return None
        others = [one.tinker_path for one in listed if one.tinker_path not in keep]
        for path in others:
            await self.delete(path)
        return len(others)

    async def warn_of_expiry(self, path: str) -> None:
        """Say when the server is going to delete these weights by itself, where it says so."""
        for one in await self._listed(path.removeprefix("tinker://").split("/")[0]) or ():
            if one.tinker_path == path and one.expires_at is not None:
                log.warning("%s: the server deletes it at %s; save again before, or copy it", path, one.expires_at)

    async def _listed(self, model_id: str) -> list[tinker.types.Checkpoint] | None:
        try:
            answer = await asyncio.wait_for(self._backend.rest.list_checkpoints(model_id), CALL_LIMIT_SEC)
        except tinker.NotFoundError:
            return []
        except (TimeoutError, *SDK_ERRORS) as error:
            log.warning("could not list the weights of %s: %s", model_id, plain(error))
            return None
        return answer.checkpoints
