"""Where the doctor's commands put their reports."""

from pathlib import Path

from src.errors import UserError
from src.run.files import replace_text

JSON = "file for the same as JSON; - = standard output, instead of the table; None = table only"


def give_json(text: str, where: str | None) -> bool:
    """Write a report where the field `json` says; True = nothing else belongs on standard output.

    Raises UserError when the file cannot be written.
    """
    if where == "-":
        print(text)
    elif where:
        try:
            replace_text(Path(where), text)
        except OSError as error:
            raise UserError(f"json={where}: cannot be written ({error.strerror}); name a file in a folder") from None
    return where == "-"
