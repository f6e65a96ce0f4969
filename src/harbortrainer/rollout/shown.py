"""Which part of a message of Terminus-2 is the terminal's output, and which its own words."""

import re
from collections.abc import Callable

from harbortrainer.learning.trajectory import Role
from harbortrainer.policy.roles import Span, Written

HEADINGS = ("New Terminal Output:\n", "Current Terminal Screen:\n")
CONFIRMS = "Current terminal state:\n"  # begins the question whether the task is complete
_OMITTED = re.compile(r"\n\[\.\.\. output limited to \d+ bytes; \d+ interior bytes omitted \.\.\.\]\n")
_MESSAGE = re.compile(
    rf"(?:Previous response had warnings:\n.*?\n\n)?(?:{CONFIRMS})?(?:{'|'.join(HEADINGS)})(.*?)"
    r"(?:\n\nAre you sure you want to mark the task as complete\?.*)?",
    re.DOTALL,
)
HALF = 5000  # bytes that Terminus-2 shows of a long output's beginning


class Shown:
    """The output of one turn. `texts`: as Terminus-2 puts it into messages, which limits a long one twice."""

    def __init__(self, output: str, limited: Callable[[str], str]) -> None:
        self._output = output
        self.texts = (limited(output), limited(limited(output)))

    def within(self, message: str) -> Written:
        """Return the message with the output's place: behind warnings, before a question, or all of it."""
        for text in self.texts:
            if message.endswith(text):
                return Written(message, *self._spans(text, len(message) - len(text)))
        if message.startswith(CONFIRMS + self.texts[0]):
            return Written(message, *self._spans(self.texts[0], len(CONFIRMS)))
        return Written(message)

    def _spans(self, text: str, at: int) -> list[Span]:
        """Of a text at this place: without its heading, and without the note on what was left out."""
        begins = max((len(heading) for heading in HEADINGS if text.startswith(heading)), default=0)
        kept = len(self._output.encode()[:HALF].decode(errors="ignore"))
        note = None if text == self._output else _OMITTED.search(text, max(kept - 3, 0))
        cuts = [begins, *(note.span() if note else ()), len(text)]
        return [(at + a, at + b, Role.ENVIRONMENT) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]


def screen_in(message: str) -> Written:
    """Return a message of a transcript with the place of the output in it, where it has the form of Terminus-2's."""
    found = _MESSAGE.fullmatch(message)
    return Written(message, *([(*found.span(1), Role.ENVIRONMENT)] if found else []))
