"""What `docker diff` lists where the layers of containers cannot be read: rights count as contents do."""

import asyncio
from pathlib import Path

import pytest

from harbortrainer.docker.daemon import call
from harbortrainer.docker.integrity.change import ChangeKind, FileChange
from harbortrainer.docker.integrity.listed_layer import ListedLayer
from tests.support.docker_parts import a_run, remove_run, started, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
DOCKERFILE = """FROM harbortrainer/tools:bookworm
RUN mkdir -p /app/owned /app/mode /app/same && echo x | tee /app/file /app/run /app/same/old && chmod 755 /app/file
"""


async def test_new_rights_are_changes(tmp_path: Path) -> None:
    run = a_run("listed")
    try:
        async with started(write_task(tmp_path / "task", dockerfile=DOCKERFILE), run) as one:
            await one.exec(
                "chown nobody /app/owned; chmod 700 /app/mode; chmod +x /app/run; echo x > /app/same/new; "
                "rm /app/file; mkdir -m 755 /app/file; groupadd crew",
                user="root",
            )
            layer = await call(ListedLayer.of, one.container)
            found = await call(lambda: sorted(layer.changes("/app")))
            old, new = [await call(read, "/etc/group") or b"" for read in (layer.original, layer.content)]
            same = [path for path in ("/etc/group", "/app/run") if await call(layer.is_same, path)]
            plain = [path for path in ("/app/run", "/app/same/new") if await call(layer.is_plain, path)]
    finally:
        await asyncio.to_thread(remove_run, run)
    assert found == [
        FileChange("/app/file", ChangeKind.CHANGED, folder=True, shallow=True),
        FileChange("/app/mode", ChangeKind.CHANGED, folder=True, shallow=True),
        FileChange("/app/owned", ChangeKind.CHANGED, folder=True, shallow=True),
        FileChange("/app/run", ChangeKind.CHANGED),
        FileChange("/app/same/new", ChangeKind.ADDED),
    ]
    assert plain == ["/app/same/new"]
    assert old and new.startswith(old) and b"crew" in new.removeprefix(old)
    assert same == ["/app/run"]
