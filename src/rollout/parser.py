"""Terminus-2's JSON parser, made safe for whatever an untrained policy writes."""

import math
from typing import Any, override

from harbor.agents.terminus_2.terminus_json_plain_parser import ParsedCommand, ParseResult, TerminusJSONPlainParser

from src.chat_template import clean_text

LONGEST_WAIT_SEC = 60.0


class AnswerParser(TerminusJSONPlainParser):
    """Never raises; counts the answers that did not parse; what it returns can be typed, logged and stored."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    @override
    def parse_response(self, response: str) -> ParseResult:
        try:
            result = super().parse_response(response)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            # valid JSON that Harbor's parser trips over: 5000-digit numbers, a thousand brackets, a list at the top
            result = ParseResult([], False, f"Invalid JSON: {type(error).__name__}", "")
        self.failures += bool(result.error)
        return ParseResult(
            commands=[_command(command) for command in result.commands],
            is_task_complete=bool(result.is_task_complete),
            error=clean_text(result.error),
            warning=clean_text(result.warning),
            analysis=_text(result.analysis),
            plan=_text(result.plan),
        )


def _command(command: ParsedCommand) -> ParsedCommand:
    wait = command.duration if math.isfinite(command.duration) else 1.0
    return ParsedCommand(clean_text(command.keystrokes), min(max(wait, 0.0), LONGEST_WAIT_SEC))


def _text(value: Any) -> str:
    return clean_text(value if isinstance(value, str) else str(value))
