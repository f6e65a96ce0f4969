"""Weights that a server keeps: which there are, and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

import tinker

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import CALL_LIMIT_SEC, CLOSE_LIMIT_SEC
from harbortrainer.backend.faults import plain, sdk_errors

_log = logging.getLogger("harbortrainer")


class SavedWeights:
    """Lists and deletes saved weights. Failures only cost disk on the server: they are logged; a resume tries again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._background: set[asyncio.Task[None]] = set()

    async def delete(self, path: str) -> None:
        """Delete saved weights; missing ones are ignored."""
        try:
            await asyncio.wait_for(self._backend.rest.delete_checkpoint_from_tinker_path(path), CALL_LIMIT_SEC)
        except tinker.NotFoundError:
            return
        except (TimeoutError, *sdk_errors()) as error:
            _log.warning("could not delete %s: %s", path, plain(error))

    def delete_later(self, path: str) -> None:
        """Delete in the background; `close` waits for it."""
        task = asyncio.create_task(self.delete(path), name=f"delete {path}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Wait for deletions in the background, at most CLOSE_LIMIT_SEC."""
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_LIMIT_SEC)

    async def delete_others(self, model_id: str, keep: Collection[str]) -> int | None:
        """Delete all weights of a model but those with paths in `keep`.

        Returns how many it tried to delete; None when the server did not list them.
        """
        listed = await self._listed(model_id)
        if listed is None:
            return None
        others = [one.tinker_path for one in listed if one.tinker_path not in keep]
        for path in others:
            await self.delete(path)
        return len(others)

    async def has(self, path: str) -> bool:
        """Return whether the server lists these weights; True when it does not list anything."""
        listed = await self._listed(path.removeprefix("tinker://").split("/")[0])
        return listed is None or any(one.tinker_path == path for one in listed)

    async def warn_of_expiry(self, path: str) -> None:
        """Log when the server will delete these weights by itself, if it reports that."""
        for one in await self._listed(path.removeprefix("tinker://").split("/")[0]) or ():
            if one.tinker_path == path and one.expires_at is not None:
                _log.warning("%s: the server deletes it at %s; save again before, or copy it", path, one.expires_at)

    async def _listed(self, model_id: str) -> list[tinker.types.Checkpoint] | None:
        try:
            answer = await asyncio.wait_for(self._backend.rest.list_checkpoints(model_id), CALL_LIMIT_SEC)
        except tinker.NotFoundError:
            return []
        except (TimeoutError, *sdk_errors()) as error:
            _log.warning("could not list the weights of %s: %s", model_id, plain(error))
            return None
        return answer.checkpoints
