"""The tmux session that the policy types into: bounded, ready before it is read, and ended without a fuss."""

from typing import override

from harbor.agents.terminus_2.tmux_session import TmuxSession
from harbor.environments.base import ExecResult

SCROLLBACK_LINES = 2000  # of a capture; the agent shows the policy at most 10 kB of it
LOG_BYTES = 2_000_000  # of everything that was ever printed: `yes` fills a disk in minutes
WAIT_STEPS, WAIT_STEP_SEC = 100, 0.05  # for the shell's first prompt: 5 s, then go on without

# What tmux says when the policy has ended its shell, killed the server or removed its socket.
ENDED = ("no server running", "error connecting to", "can't find", "no sessions", "lost server", "server exited")
MISSING = (126, 127)  # the policy removed tmux, or bash itself
NO_PROCESS = 254  # our Docker shell's answer when the policy has used up all processes


class KeysRefused(Exception):
    """The policy's keystrokes cannot be sent to any terminal."""


class CommandFailed(RuntimeError):
    """tmux, or the way to it, failed."""

    def __init__(self, message: str, result: ExecResult) -> None:
        super().__init__(message)
        self.result = result


class Terminal(TmuxSession):
    """Terminus-2's session. A shell that the policy ended is no error: `is_session_alive` tells the agent to stop."""

    ended = False

    @property
    @override
    def _tmux_start_session(self) -> str:
        unbounded = f"cat > {self._logging_path}"
        bounded = f"head -c {LOG_BYTES} > {self._logging_path}"
        return super()._tmux_start_session.replace(unbounded, bounded)

    @override
    def _tmux_capture_pane(self, capture_entire: bool = False) -> str:
        start = f"-S -{SCROLLBACK_LINES} " if capture_entire else ""
        return f"tmux capture-pane -p {start}-t {self._session_name}"

    @override
    async def start(self) -> None:
        """Start the shell and wait for its prompt: keys sent before that can be lost or run after the verifier."""
        command = f"{self._tmux_start_session} && {self._wait_for_prompt}"
        result = await self.environment.exec(command=command, user=self._user)
        if result.return_code in MISSING:
            await self._attempt_tmux_installation()
            result = await self.environment.exec(command=command, user=self._user)
        if result.return_code != 0:
            raise RuntimeError(f"tmux did not start: {_said(result)}")

    @override
    async def is_session_alive(self) -> bool:
        """As the last command found it: Terminus-2 asks before every turn, and asking tmux costs a process."""
        return not self.ended

    @override
    async def capture_pane(self, capture_entire: bool = False) -> str:
        command = self._tmux_capture_pane(capture_entire=capture_entire)
        result = await self.environment.exec(command, user=self._user)
        if result.return_code == 0:
            return result.stdout or ""
        if not await self._ended_by_policy(result):
            raise RuntimeError(f"reading the terminal failed with {result.return_code}: {_said(result)}")
        self.ended = True
        return ""

    @override
    async def send_keys(
        self,
        keys: str | list[str],
        block: bool = False,
        min_timeout_sec: float = 0.0,
        max_timeout_sec: float = 180.0,
    ) -> None:
        """Type `keys` and wait `min_timeout_sec`. Raises KeysRefused for what no process argument can hold."""
        if self.ended:
            return
        try:
            await super().send_keys(keys, block, min_timeout_sec, max_timeout_sec)
        except CommandFailed as error:
            if not await self._ended_by_policy(error.result):
                raise
            self.ended = True
        except ValueError as error:  # NUL and lone surrogates; the parser removes those it knows of
            raise KeysRefused(str(error)) from error

    @override
    def _send_keys_error(self, action: str, command: str, result: ExecResult) -> RuntimeError:
        return CommandFailed(f"typing into the terminal failed with {result.return_code}: {_said(result)}", result)

    async def _ended_by_policy(self, result: ExecResult) -> bool:
        """Whether there is no terminal any more while the container still runs commands."""
        if _shows_end(result):
            return True
        probe = f"tmux has-session -t {self._session_name} 2>/dev/null && echo alive || echo gone"
        answer = await self.environment.exec(probe, user=self._user)
        return _shows_end(answer) or (answer.return_code == 0 and "gone" in (answer.stdout or ""))

    @property
    def _wait_for_prompt(self) -> str:
        column = f"tmux display-message -p -t {self._session_name} '#{{cursor_x}}'"
        return f'for i in $(seq {WAIT_STEPS}); do [ "$({column})" != 0 ] && break; sleep {WAIT_STEP_SEC}; done; true'


def _said(result: ExecResult) -> str:
    return f"{result.stdout or ''} {result.stderr or ''}".strip()


def _shows_end(result: ExecResult) -> bool:
    said = _said(result).lower()
    return result.return_code in (*MISSING, NO_PROCESS) or any(sign in said for sign in ENDED)
