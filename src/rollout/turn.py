"""The scripts of a terminal turn: one run in the container types, waits and reads the screen.

How it tells that a command has ended is invisible to the policy: from /proc, and the terminal's mode (`turn.sh`).
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from src.rollout.docker.shell import IN_SHELL

AT_REST_SEC, AT_REST_LONG_SEC = 0.01, 0.15  # that shell and tmux sleep before a prompt counts; after a lot of input
LONG_INPUT = 1000  # bytes; a terminal's buffer takes 4096
START_LIMIT_SEC = 5  # for the shell's first prompt; then go on without
FAILED = "failed "


@dataclass(frozen=True, slots=True)
class Pane:
    """Process ids of the pane's shell and of the tmux server, and the terminal, in the container."""

    shell: int
    server: int
    tty: str


@dataclass(frozen=True, slots=True)
class Step:
    """One command of an answer; `typed` = its keys were typed before."""

    keys: str
    seconds: float
    typed: bool = False

    @property
    def settle(self) -> float:
        """Seconds that the shell must be at rest: tmux may still be at typing long keys."""
        return AT_REST_LONG_SEC if self.typed or len(self.keys) >= LONG_INPUT else AT_REST_SEC


@dataclass(frozen=True, slots=True)
class Screen:
    """A capture: the scrollback's end and the visible screen behind it, `height` lines."""

    text: str
    height: int

    @property
    def visible(self) -> str:
        lines = self.text.removesuffix("\n").split("\n")  # not splitlines: a screen may hold U+2028
        return "\n".join([*lines[-self.height :], ""]) if self.text and self.height else self.text


def turn_script(steps: Sequence[Step], send: Callable[[str], str], capture: str, pane: Pane | None) -> str:
    """Take the steps one after the other, then run `capture`. Without a `pane` every step takes its whole time.

    `send(keys)` is the shell command that types keys. Where it fails, the script prints FAILED and the step's number
    and ends with its exit code.
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
        else:  # a policy that only waits, before a shell that has nothing to do, waits for something else
            lines.append("K0=" if step.typed else "rests && asks && L0=")
        lines.append(f"await {step.settle}")
    return "\n".join([*lines, capture or ":"])


def start_script(launch: str, session: str) -> str:
    """Run `launch`, which prints the pane's shell, tmux and terminal, print those, and wait for the first prompt."""
    column = f"tmux display-message -p -t {session} '#{{cursor_x}}'"
    return f"""{IN_SHELL}
{_library()}
drawn() {{ [ "$({column})" != 0 ]; }}
asks() {{ no_news && drawn; }}
i=$({{ {launch}; }} 9>&-) || exit
echo "$i"
set -- $i
P=$1 S=$2 T=$3
begin {100 * START_LIMIT_SEC}
if look "$P"; then L0=none; await {AT_REST_SEC}; else
    i=0; while [ $i -lt {20 * START_LIMIT_SEC} ] && ! drawn; do i=$((i + 1)); nap 0.05; done
fi
tmux has-session -t {session}
"""


def failed_step(stdout: str) -> int | None:
    """The number of the step that `turn_script` says could not be typed."""
    found = re.search(rf"^{FAILED}(\d+)\s*$", stdout, re.MULTILINE)
    return int(found[1]) if found else None


def read_pane(stdout: str) -> Pane | None:
    """From the output of `start_script`; None where tmux did not tell."""
    match stdout.split():
        case [shell, server, tty] if shell.isdigit() and server.isdigit():
            return Pane(int(shell), int(server), tty)
    return None


def read_screen(stdout: str) -> Screen:
    """From the pane's height in a line of its own and what `tmux capture-pane` printed."""
    height, _, text = stdout.partition("\n")
    return Screen(text, int(height) if height.strip().isdigit() else 0)


@cache
def _library() -> str:
    """`turn.sh` without its comments and indentation."""
    lines = (line.partition(" # ")[0].strip() for line in Path(__file__).with_suffix(".sh").read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))
