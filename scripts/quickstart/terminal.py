"""A terminal that never runs anything: it knows a case's commands and shows what tmux in the container would show."""

from scripts.quickstart.cases import Case
from scripts.quickstart.prompts import HOSTNAME, NEW_OUTPUT, SCREEN

ROWS = 40


class SimulatedTerminal:
    def __init__(self, case: Case, hostname: str = HOSTNAME) -> None:
        self._case = case
        self._shown = {command.typed: command.shown for command in case.wrong} | {case.right: ""}
        self._prompt = f"root@{hostname}:/app#"
        self._lines = [self._prompt]
        self._before: str | None = None
        self.ran: list[str] = []

    @property
    def solved(self) -> bool:
        """The right command ran before any other could do harm."""
        return self.ran[:1] == [self._case.right]

    def type(self, keys: str) -> None:
        *commands, rest = keys.split("\n")
        for command in commands:
            self._echo(command)
            self._run(command)
        self._echo(rest)

    def observe(self, *, late: bool = False) -> str:
        """The screen as Terminus-2 reports it: all of it at first, then what is new since the last time.

        `late`: as if read before the shell has come back with its prompt.
        """
        lines = self._lines[:-1] if late and len(self._lines) > 1 else self._lines
        now = "\n".join(lines) + "\n" * (max(0, ROWS - len(lines)) + 1)
        before, self._before = self._before, now
        new = None if before is None else _new_part(before.strip(), now)
        return NEW_OUTPUT + new if new and new.strip() else SCREEN + now

    def _echo(self, keys: str) -> None:
        self._lines[-1] += (" " if keys and self._lines[-1] == self._prompt else "") + keys

    def _run(self, command: str) -> None:
        if command.strip():
            self.ran.append(command)
            program = command.split()[0]
            shown = self._shown.get(command, f"bash: {program}: command not found")
            self._lines += shown.split("\n") if shown else []
        self._lines.append(self._prompt)


def _new_part(before: str, now: str) -> str | None:
    """As TmuxSession finds it, with its quirk: the cut is the last line break of the old screen."""
    if before not in now:
        return None
    return now[before.rfind("\n") if "\n" in before else now.index(before) :]
