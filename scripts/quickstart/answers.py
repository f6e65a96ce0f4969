"""The policy's answers: Terminus-2's JSON, always laid out alike."""

CAREFUL = "Follow the task word for word."
CARELESS = ("Use the first command that fits.", "Try something simple.", "Guess what is wanted.")
START = ("The terminal is ready.", "The task is clear.")
DONE = ("The command was executed.", "The work is finished.")
CHECK, FINISH = "Look at the terminal again.", "Mark the task as complete."
AGAIN = "The last answer was not valid."

_ANALYSIS, _PLAN, _COMMANDS = '{"analysis": "', '", "plan": "', '", "commands": ['
_KEYS, _ENTER = '{"keystrokes": "', '\\n", "duration": 0.1}'
_COMPLETE, _GO_ON = '], "task_complete": true}', '], "task_complete": false}'

PHRASES = (
    *(_ANALYSIS, _PLAN, _COMMANDS, _KEYS, _ENTER, _COMPLETE, _GO_ON, ", " + _KEYS),
    *(CAREFUL, *CARELESS, *START, *DONE, CHECK, FINISH, AGAIN),
)


def answer(analysis: str, plan: str, command: str | None, *, complete: bool) -> str:
    typed = f"{_KEYS}{command}{_ENTER}" if command is not None else ""
    return f"{_ANALYSIS}{analysis}{_PLAN}{plan}{_COMMANDS}{typed}{_COMPLETE if complete else _GO_ON}"


def broken(analysis: str, plan: str, command: str) -> str:
    """An answer whose string is never closed."""
    return f"{_ANALYSIS}{analysis}{_PLAN}{plan}{_COMMANDS}{_KEYS}{command}"
