"""A command for a container, and what an open shell (shell.py) is given to run it.

Each command is a `bash -c` in a session of its own, as with `docker exec`, so no state passes between commands; one
that begins with IN_SHELL runs in a fork of the open bash, at half the cost. The shell prints a marker before and after
each, on both streams, which no process in the container can guess.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

# its first line: docker-py gives the stream of an exec once something has come through it
BOOT = "echo started; command -v bash >/dev/null 2>&1 && exec bash --noprofile --norc; exec sh"
READY, BLOCKS = b"ready\n", b"blocks ready\n"
SAY_READY = b'case $BASH_VERSION in ""|[1-3].*|4.0*) echo ready;; *) echo blocks ready;; esac\n'
# fd 3 is the commands' stderr; the shell's own messages ("Killed") are dropped. Every command gets a process group: by
# job control in bash, which costs nothing, by setsid elsewhere. Z_: how a script sleeps, by `read` where that can be.
# No name here may be a variable of an image: it would reach the commands with the shell's value.
PREAMBLE = b"""\
exec 3>&2 2>/dev/null; unset OLDPWD
if [ -n "$BASH_VERSION" ]; then B_=bash S_= Z_=; set -m; else B_=sh S_=; command -v setsid >/dev/null && S_=setsid; fi
sleeper_() { [ "$Z_" ] || [ $B_ != bash ] || { eval "exec 9<> <(:)" && Z_=read; }; }
begin_() { printf '%s:b\\n' $1; printf '%s:b\\n' $1 >&3; p_=; }
end_() { wait $p_; r_=$?; [ -n "$p_" ] || r_=254; printf '%s:e%s\\n' $1 $r_; printf '%s:e\\n' $1 >&3; }
"""
_WORD = r"(?:[\w@%+=:,./-]|'[^']*')+"
_PLAIN = re.compile(rf"{_WORD}(?: (?:&& )?{_WORD})*")  # nothing that a shell would expand
IN_SHELL = ": in this shell"  # first line of a script that may run in a fork of the open shell; a no-op there


@dataclass(frozen=True, slots=True)
class ShellCommand:
    text: str
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    needs_cwd: bool = True  # False = run in / when `cwd` does not exist


def script(mark: str, command: ShellCommand, *, block: bool) -> bytes:
    """Return the lines that run `command` and print `mark`: several, since a fork that fails ends its own line.

    `block`: the shell takes a number of characters at once. It reads lines byte by byte, with a system call for each.
    """
    start = _start(mark, command)
    if block and start.isascii():
        start = f'TMOUT=0 read -r -N {len(start)} C_ && eval "$C_"\n{start}'
    sleeper = "sleeper_\n" if command.text.startswith(IN_SHELL) else ""
    return f"{sleeper}begin_ {mark}\n{start}end_ {mark}\n".encode()


def _start(mark: str, command: ShellCommand) -> str:
    """Starts the command in a group of its own, p_, and prints that."""
    if "\0" in command.text:
        raise ValueError("embedded null byte in command")
    assignments = " ".join(shlex.quote(f"{name}={value}") for name, value in command.env.items())
    inside = command.text.startswith(IN_SHELL)
    program = f'exec {f"env {assignments} " if assignments else ""}$S_ "$B_" -c {shlex.quote(command.text)}'
    if inside:
        forked = f"{assignments and f'export {assignments}; '}eval {shlex.quote(command.text)}; exit"
        program = f"[ $B_ != bash ] || {{ {forked}; }}; {program}"
    enter = f"cd -- {shlex.quote(command.cwd)} " + ("|| exit 126" if command.needs_cwd else "2>/dev/null || cd /")
    closed = "3>&-" if inside else "3>&- 9>&-"
    return f"C_=\n( {enter}; {program} ) </dev/null 2>&3 {closed} & p_=$!; printf '{mark}:p%s\\n' $p_ >&3\n"


def cheap(command: str) -> str:
    """Return the command, run in a fork of the open shell where it is one of Harbor's own small ones."""
    return f"{IN_SHELL}\n{command}" if _PLAIN.fullmatch(command) else command
