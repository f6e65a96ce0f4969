"""The tmux session that the policy types into, and the scripts that run a whole turn in one exec."""

import asyncio
import contextlib
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

from harbor.agents.terminus_2.tmux_session import TmuxSession
from harbor.environments.base import ExecResult

from harbortrainer.docker.box.artifacts import CollectedEnvironment
from harbortrainer.docker.box.command import IN_SHELL

if TYPE_CHECKING:  # imports litellm
    from harbor.agents.terminus_2.terminus_2 import Command

AT_REST_SEC, AT_REST_LONG_SEC = 0.01, 0.15  # that shell and tmux sleep before a prompt counts; after a lot of input
LONG_INPUT = 1000  # bytes; a terminal's buffer takes 4096
START_LIMIT_SEC = 5  # for the shell's first prompt; after that the session continues without one
FAILED = "failed "
SCROLLBACK_LINES = 2000  # kept and captured; the agent shows the policy at most 10 kB of it
# tmux would look for a window's new name half a second after output, in verification too, whose cause it then were.
_NEW_SESSION = (
    f"tmux start-server \\; set-option -g history-limit {SCROLLBACK_LINES} \\; "
    "set-option -gw automatic-rename off \\; new-session"
)
LOG_BYTES = 2_000_000  # of everything that was printed: `yes` fills a disk in minutes
EXEC_MARGIN_SEC = 60  # for a script beyond the time that it waits on purpose; after that the environment hangs
SCRIPT_BYTES = 60_000  # of the keys of one exec; a process argument holds 128 kB

# tmux's messages when the policy has ended its shell, killed the server or removed its socket
ENDED = ("no server running", "error connecting to", "can't find", "no sessions", "lost server", "server exited")
MISSING = (126, 127)  # exit codes when the policy removed tmux, or bash itself
NO_PROCESS = 254  # exit code of the Docker shell when the policy has used up all processes


@dataclass(frozen=True, slots=True)
class Pane:
    """Process ids of the pane's shell and of the tmux server, and the terminal, in the container."""

    shell: int
    server: int
    tty: str


@dataclass(frozen=True, slots=True)
class TypedStep:
    """One command of an answer; `typed`: its keys were typed before."""

    keys: str
    seconds: float
    typed: bool = False

    @property
    def settle(self) -> float:
        """Seconds that the shell must be at rest: tmux may still be typing long keys."""
        return AT_REST_LONG_SEC if self.typed or len(self.keys) >= LONG_INPUT else AT_REST_SEC


@dataclass(frozen=True, slots=True)
class Screen:
    """A capture: the end of the scrollback, then the visible screen of `height` lines."""

    text: str
    height: int

    @property
    def visible(self) -> str:
        lines = self.text.removesuffix("\n").split("\n")  # not splitlines: a screen may hold U+2028
        return "\n".join([*lines[-self.height :], ""]) if self.text and self.height else self.text


def turn_script(steps: Sequence[TypedStep], send: Callable[[str], str], capture: str, pane: Pane | None) -> str:
    """Get script that takes the steps in order, then runs `capture`. Without a `pane` every step takes its whole time.

    It finds the end of a command from /proc and the terminal's mode (`terminal.sh`), invisibly to the policy.
    `send(keys)` is the shell command that types keys; if it fails, the script prints FAILED and the step's number and
    ends with its exit code.
    """
    where = f"P={pane.shell} S={pane.server} T={shlex.quote(pane.tty)}" if pane else "P= S= T="
    lines = [IN_SHELL]
    if any(step.seconds for step in steps):
        lines += [_library(), where]
    for i, step in enumerate(steps):
        if not step.seconds:
            lines += [f"{send(step.keys)} || {{ r=$?; echo {FAILED}{i}; exit $r; }}"] if step.keys else []
            continue
        lines.append(f"begin {round(100 * step.seconds)}")
        if step.keys:
            lines.append(f"{send(step.keys)} || failed {i}")
        else:  # a policy that only waits while its shell is idle waits for something else
            lines.append("K0=" if step.typed else "rests && asks && L0=")
        lines.append(f"await {step.settle}")
    return "\n".join([*lines, capture or ":"])


def start_script(launch: str, session: str) -> str:
    """Get script that runs `launch`, prints its output (a Pane: shell, tmux, terminal), and awaits the first prompt."""
    column = f"tmux display-message -p -t {session} '#{{cursor_x}}'"
    return f"""{IN_SHELL}
{_library()}
drawn() {{ [ "$({column})" != 0 ]; }}
up=
asks() {{ no_news && drawn && up=1; }}
i=$({{ {launch}; }} 9>&-) || exit
echo "$i"
set -- $i
P=$1 S=$2 T=$3
begin {100 * START_LIMIT_SEC}
if look "$P"; then L0=none; await {AT_REST_SEC}; else
    i=0; while [ $i -lt {20 * START_LIMIT_SEC} ] && ! drawn; do i=$((i + 1)); nap 0.05; done
fi
[ "$up" ] && lives || tmux has-session -t {session}
"""


def failed_step(stdout: str) -> int | None:
    """Return the number of the step that `turn_script` could not type."""
    found = re.search(rf"^{FAILED}(\d+)\s*$", stdout, re.MULTILINE)
    return int(found[1]) if found else None


def read_pane(stdout: str) -> Pane | None:
    """Parse the output of `start_script`; None where it lacks the pane."""
    match stdout.split():
        case [shell, server, tty] if shell.isdigit() and server.isdigit():
            return Pane(int(shell), int(server), tty)
    return None


def read_screen(stdout: str) -> Screen:
    """Parse a capture: a line with the pane's height, then the output of `tmux capture-pane`."""
    height, _, text = stdout.partition("\n")
    return Screen(text, int(height) if height.strip().isdigit() else 0)


@cache
def _library() -> str:
    """`terminal.sh` without its comments and indentation."""
    lines = (line.partition(" # ")[0].strip() for line in Path(__file__).with_suffix(".sh").read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


class KeysRefused(Exception):
    """The policy's keystrokes cannot be sent to any terminal."""


class CommandFailed(RuntimeError):
    """tmux, or the way to it, failed."""

    def __init__(self, message: str, result: ExecResult) -> None:
        super().__init__(message)
        self.result = result


class Terminal(TmuxSession):
    """Terminus-2's session with one exec for each turn; `ended`: the policy ended its shell, and the agent stops."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._pane: Pane | None = None
        self._screen: Screen | None = None  # of the last turn
        self.ended = False

    @property
    @override
    def _tmux_start_session(self) -> str:
        """Harbor's command, with bounded output and `sh` where bash is missing; prints the fields of `Pane`."""
        changes = {
            f"cat > {self._logging_path}": f"head -c {LOG_BYTES} > {self._logging_path}",
            "tmux new-session": _NEW_SESSION,
            "'bash --login'": "'command -v bash >/dev/null && exec bash --login; exec sh -l'",
        }
        command = super()._tmux_start_session
        for harbors, ours in changes.items():
            command = command.replace(harbors, ours)
        return f"{command} \\; display-message -p -t {self._session_name} '#{{pane_pid}} #{{pid}} #{{pane_tty}}'"

    @override
    def _tmux_capture_pane(self, capture_entire: bool = False) -> str:
        """Capture once with one client: the visible screen is the end of the whole."""
        target = f"-t {self._session_name}"
        return (
            f"tmux display-message -p {target} '#{{pane_height}}' \\; capture-pane -p -S -{SCROLLBACK_LINES} {target}"
        )

    @override
    async def start(self) -> None:
        """Start the shell and wait for its prompt: earlier keys can be lost or run after the verifier."""
        script = start_script(self._tmux_start_session, self._session_name)
        result = await self._exec(script, START_LIMIT_SEC)
        if result.return_code in MISSING:
            await self._attempt_tmux_installation()
            result = await self._exec(script, START_LIMIT_SEC)
        if result.return_code != 0:
            raise RuntimeError(f"tmux did not start: {_why_not_started(result)}")
        self._pane = read_pane(result.stdout or "")

    @override
    async def is_session_alive(self) -> bool:
        """Return the state at the last command: Terminus-2 asks before every turn, and asking tmux costs a process."""
        return not self.ended

    async def take_turn(self, commands: "Sequence[Command]") -> str:
        """Type each command and wait for it, then return what Harbor shows the policy.

        Raises KeysRefused for keys that no terminal takes, RuntimeError and TimeoutError where the environment fails.
        """
        if not self.ended:
            try:
                self._screen = await self._type(commands)
            except (RuntimeError, TimeoutError) as error:
                if not await self._ended_by_policy(error):
                    raise
                self.ended = True
        return await super().get_incremental_output()

    @override
    async def get_incremental_output(self) -> str:
        return await self.take_turn(())

    @override
    async def capture_pane(self, capture_entire: bool = False) -> str:
        """Return the screen after the last turn; empty when the session has ended."""
        if self.ended or self._screen is None:
            return ""
        return self._screen.text if capture_entire else self._screen.visible

    async def _type(self, commands: "Sequence[Command]") -> Screen:
        """Type all in one exec, unless tmux needs a paste buffer for a command's keys. Raises CommandFailed."""
        steps = [TypedStep(_typeable(command.keystrokes), command.duration_sec) for command in commands]
        while True:
            if steps and self._key_requires_paste(steps[0].keys):
                steps[0] = await self._pasted(steps[0])
            n = self._fitting(steps)
            capture = self._tmux_capture_pane() if n == len(steps) else ""
            script = turn_script(steps[:n], lambda keys: self._send_keys_command([keys]), capture, self._pane)
            result = await self._exec(script, sum(step.seconds for step in steps[:n]))
            if result.return_code == 0 and n == len(steps):
                return read_screen(result.stdout or "")
            refused = failed_step(result.stdout or "")
            if result.return_code == 0:
                steps = steps[n:]
            elif refused is not None and self._is_command_too_long_error(result):  # an old tmux takes less than 16 kB
                steps = [await self._pasted(steps[refused]), *steps[refused + 1 :]]
            else:
                action = "reading" if refused is None else "typing into"
                raise CommandFailed(f"{action} the terminal failed with {result.return_code}: {_text(result)}", result)

    def _fitting(self, steps: Sequence[TypedStep]) -> int:
        """The number of steps that one exec can take, at least one."""
        size = 0
        for i, step in enumerate(steps):
            size += len(step.keys.encode())
            if i and (size > SCRIPT_BYTES or self._key_requires_paste(step.keys)):
                return i
        return len(steps)

    async def _pasted(self, step: TypedStep) -> TypedStep:
        """Type the step's keys through a paste buffer. Returns a step that only waits."""
        async with asyncio.timeout(EXEC_MARGIN_SEC):
            await self._paste_key(step.keys, "long")
        return TypedStep("", step.seconds, typed=True)

    @override
    def _send_keys_error(self, action: str, command: str, result: ExecResult) -> RuntimeError:
        return CommandFailed(f"typing into the terminal failed with {result.return_code}: {_text(result)}", result)

    async def _ended_by_policy(self, error: Exception) -> bool:
        """Whether the terminal is gone, or stands still, in a container that is up."""
        if isinstance(error, CommandFailed):
            with contextlib.suppress(RuntimeError, TimeoutError):  # no shell starts any more, or it does not answer
                return await self._is_gone(error.result)
        return isinstance(self.environment, CollectedEnvironment) and await self.environment.is_up()

    async def _is_gone(self, result: ExecResult) -> bool:
        """Whether the terminal is gone while the container still runs commands."""
        probe = f"tmux has-session -t {self._session_name} 2>/dev/null && echo alive || echo gone"
        answer = await self._exec(f"{IN_SHELL}\necho up; {probe}")
        words = (answer.stdout or "").split()
        if answer.return_code not in (*MISSING, NO_PROCESS) and (answer.return_code != 0 or "up" not in words):
            return False  # where no command runs, the policy did not end tmux
        return _shows_end(result) or _shows_end(answer) or "gone" in words

    async def _exec(self, command: str, seconds: float = 0) -> ExecResult:
        """Run a command that waits `seconds` on purpose. Raises RuntimeError or TimeoutError when late."""
        limit = math.ceil(seconds) + EXEC_MARGIN_SEC
        async with asyncio.timeout(limit + EXEC_MARGIN_SEC):
            return await self.environment.exec(command, user=self._user, timeout_sec=limit)


def _typeable(keys: str) -> str:
    """`keys`, if a process argument can hold them: no NUL, no lone surrogate. Raises KeysRefused."""
    try:
        if "\0" in keys:
            raise KeysRefused("a NUL byte cannot be typed")
        keys.encode()
    except UnicodeEncodeError as error:
        raise KeysRefused(str(error)) from error
    return keys


def _why_not_started(result: ExecResult) -> str:
    if result.return_code in MISSING:
        return "the image has none, and it could not be installed: install tmux in the Dockerfile"
    if read_pane(result.stdout or ""):
        return "its shell ended at once: look for an exit in the image's profile and .bashrc"
    return _text(result)


def _text(result: ExecResult) -> str:
    return f"{result.stdout or ''} {result.stderr or ''}".strip()


def _shows_end(result: ExecResult) -> bool:
    text = _text(result).lower()
    return result.return_code in (*MISSING, NO_PROCESS) or any(sign in text for sign in ENDED)
