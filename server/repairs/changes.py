"""Whether a database has changed, at a hundredth of the price of a query through SQLAlchemy."""

import sqlite3
from typing import Any


class Changes:
    """Of an SQLite file, seen by a connection of its own. Any other database counts as changed at every look."""

    def __init__(self, url: Any) -> None:
        """`url`: SQLAlchemy's."""
        name = url.database or ""
        is_file = url.get_backend_name() == "sqlite" and name and not name.startswith((":memory:", "file:"))
        self._connection = sqlite3.connect(name, timeout=0) if is_file else None
        self._version = -1

    def seen(self) -> bool:
        """Whether something was committed since the last look; True at the first one, and where none is possible."""
        if self._connection is None:
            return True
        try:
            ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.OperationalError:  # locked, or its disk is full
            return True
        changed, self._version = version != self._version, version
        return changed
