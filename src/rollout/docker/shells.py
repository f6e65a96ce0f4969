"""The open shells of one container: one a user, more while commands overlap."""

import asyncio
from collections import defaultdict

from docker.errors import DockerException

from src.rollout.docker.removal import in_background
from src.rollout.docker.shell import MAX_OUTPUT_BYTES, Command, Output, Shell, ShellGone

KILL_WAIT_SEC = 5.0


class Shells:
    def __init__(self, container: str) -> None:
        self._container = container
        self._idle: defaultdict[str, list[Shell]] = defaultdict(list)
        self._closed = False

    async def run(
        self,
        command: str | Command,
        *,
        user: str = "",
        seconds: float | None = None,
        limit: int = MAX_OUTPUT_BYTES,
    ) -> Output:
        """Run a command as `user` ("" = the image's) and return its output, at most `limit` bytes a stream.

        Raises TimeoutError after `seconds`; then, and when cancelled, the command's process group is killed
        and the shell is kept. Raises RuntimeError when no shell can be had.
        """
        command = command if isinstance(command, Command) else Command(command)
        try:
            return await self._run_once(command, user, seconds, limit)
        except ShellGone:  # it died while it was idle; the command has not begun
            pass
        try:
            return await self._run_once(command, user, seconds, limit)
        except ShellGone as error:
            raise RuntimeError(f"no shell in container {self._container}: {error}") from None

    async def _run_once(self, command: Command, user: str, seconds: float | None, limit: int) -> Output:
        shell = await self._take(user)
        try:
            async with asyncio.timeout(seconds):
                output = await shell.run(command, limit)
        except TimeoutError:
            await self._interrupt(shell, user)
            raise
        except asyncio.CancelledError:
            in_background(self._interrupt(shell, user))
            raise
        except (ShellGone, ValueError):
            shell.close()
            raise
        self._give(shell, user)
        return output

    async def last_words(self, script: str, seconds: float) -> None:
        """Have a root shell itself run `script`, see `Shell.last_words`; no idle shell is left.

        Raises TimeoutError, ShellGone, docker.errors.DockerException.
        """
        async with asyncio.timeout(seconds):
            shell = await self._take("root")
            self.drop()
            try:
                await shell.last_words(script)
            finally:
                shell.close()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Close the idle shells; the next command opens one anew."""
        for shells in self._idle.values():
            for shell in shells:
                shell.close()
        self._idle.clear()

    async def _take(self, user: str) -> Shell:
        while self._idle[user]:
            shell = self._idle[user].pop()
            if shell.alive:
                return shell
            shell.close()
        return await Shell.open(self._container, user)

    def _give(self, shell: Shell, user: str) -> None:
        if self._closed or not shell.alive:
            shell.close()
        else:
            self._idle[user].append(shell)

    async def _interrupt(self, shell: Shell, user: str) -> None:
        """Kill what `shell` runs, with its process group, and take the shell back when it is free again."""
        pid = None if self._closed else await shell.process(KILL_WAIT_SEC)
        if pid is not None:
            await self._kill(pid)
        if await shell.settle(KILL_WAIT_SEC):
            self._give(shell, user)
        else:
            shell.close()

    async def _kill(self, pid: int) -> None:
        helper = None
        try:
            async with asyncio.timeout(KILL_WAIT_SEC):
                helper = await self._take("root")
                await helper.run(Command(f"kill -s KILL -- -{pid} 2>/dev/null || kill -s KILL {pid}"))
        except (TimeoutError, ShellGone, DockerException):
            if helper:
                helper.close()
        else:
            self._give(helper, "root")
