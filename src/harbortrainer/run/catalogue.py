"""What each metric is: the rows of docs/metrics.md and the words of the report's plots, kept in catalogue.csv."""

import csv
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Metric(NamedTuple):
    """A row of the catalogue. `name` may have `*`; without one `what` holds for the whole group. Texts are Markdown."""

    group: str
    name: str
    unit: str
    what: str
    read: str

    @property
    def plain(self) -> str:
        """What it is and how to read it, without Markdown."""
        text = f"{self.what}\n{self.read}".strip()
        return re.sub(r"`|\[([^\]]+)\]\([^)]*\)", r"\1", text)


@cache
def metrics() -> tuple[Metric, ...]:
    """Return all rows, in the order of the page."""
    with Path(__file__).with_name("catalogue.csv").open(newline="") as file:
        return tuple(Metric(**row) for row in csv.DictReader(file))


def metric_of(name: str) -> Metric:
    """Return the row of a metric of a run; one of unit "value" for a name that has none."""
    found = (one for one in metrics() if one.name and fnmatchcase(name, one.name))
    return next(found, Metric("", name, "value", "", ""))
