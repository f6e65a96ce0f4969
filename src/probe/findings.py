"""What measurements leave behind: rows for the table, facts for the trainer."""

from collections.abc import Awaitable, Callable
from typing import Any

from src.errors import BackendError
from src.probe.report import Facts, Row, Verdict


class Findings:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.facts: dict[str, Any] = {}

    def row(self, group: str, what: str, value: object, verdict: Verdict, note: str = "") -> None:
        self.rows.append(Row(group, what, str(value), verdict, note))

    def judge(self, group: str, what: str, found: bool | None, texts: tuple[str, str], note: str = "") -> None:
        """A row for a yes/no question: texts of yes (as on Tinker) and no; `note` is what follows from no."""
        if found is None:
            self.row(group, what, "unclear", "unclear")
        else:
            self.row(
                group, what, texts[0] if found else texts[1], "same" if found else "differs", "" if found else note
            )

    async def section(self, group: str, measure: Callable[[], Awaitable[None]]) -> bool:
        """Runs one measurement; a fault of the server becomes a row, and the other measurements go on."""
        try:
            await measure()
        except BackendError as error:
            self.row(group, "measurement", f"failed: {error}", "unclear")
            return False
        return True

    def to_facts(self) -> Facts:
        return Facts(**self.facts)
