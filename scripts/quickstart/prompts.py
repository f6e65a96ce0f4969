"""What Terminus-2 says to the policy, from Harbor's own template, and the fixed phrases in it."""

from importlib.resources import files

# not through harbor.agents.terminus_2: importing that takes seconds and asks the network for prices
_TEMPLATE = (files("harbor") / "agents" / "terminus_2" / "templates" / "terminus-json-plain.txt").read_text()

HEAD = _TEMPLATE.partition("{instruction}")[0].format()
STATE, SCREEN, NEW_OUTPUT = "Current terminal state:\n", "Current Terminal Screen:\n", "New Terminal Output:\n"
HOSTNAME = "harbor"
ARE_YOU_SURE = (
    "\n\nAre you sure you want to mark the task as complete? This will trigger your solution to be graded and you "
    "won't be able to make any further corrections. "
    'If so, include "task_complete": true in your JSON response again.'
)
PARSE_ERROR = "Previous response had parsing errors:\nERROR: "
NO_JSON = "No valid JSON found in response\nWARNINGS: - No valid JSON object found"
PLEASE_FIX = "\n\nPlease fix these issues and provide a proper JSON response."

PHRASES = (
    HEAD,
    STATE + SCREEN,
    STATE + NEW_OUTPUT,
    SCREEN,
    NEW_OUTPUT,
    f"root@{HOSTNAME}:/app#",
    f"root@{HOSTNAME}:/app# ",
    "root@",
    ":/app#",
    ":/app# ",
    ARE_YOU_SURE,
    PARSE_ERROR,
    "Previous response had warnings:\nWARNINGS: ",
    NO_JSON,
    PLEASE_FIX,
    "bash: ",
    ": command not found",
    ": No such file or directory",
    "Permission denied",
)


def first_prompt(instruction: str, screen: str) -> str:
    """`instruction` as in instruction.md (with its newline), `screen` as `observe` of a terminal gives it."""
    return _TEMPLATE.format(instruction=instruction, terminal_state=screen)


def confirmation(screen: str) -> str:
    return STATE + screen + ARE_YOU_SURE


def parse_failure(error: str) -> str:
    return f"Previous response had parsing errors:\nERROR: {error}{PLEASE_FIX}"
