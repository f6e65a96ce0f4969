"""The report of a probe: facts for the trainer and rows for people, as a table, as JSON, and cached between runs."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harbortrainer.durable.files import cache_folder, replace_text
from harbortrainer.errors import BackendError

MEASUREMENT = "measurement"  # the row of a part that failed
Verdict = Literal["same", "differs", "unusable", "unclear", "not measured", "info"]
Reduction = Literal["sum", "example_mean", "unknown"]
PromptLogprobs = Literal["leading_none", "short", "refused"]
STYLES = {"same": "green", "differs": "yellow", "unusable": "red", "unclear": "magenta", "not measured": "dim"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `verdict`: against Tinker's meaning; `note`: what follows from it."""

    group: str
    what: str
    value: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts for the trainer. None = not measured, or measured and unclear."""

    losses: dict[str, tuple[str, ...]] = field(default_factory=dict)  # accepted losses -> settings with an effect
    # learning_rate, beta1, beta2, eps, grad_clip_norm: whether it reaches the optimizer
    adam: dict[str, bool | None] = field(default_factory=dict)
    reduction: Reduction = "unknown"
    prompt_logprobs: PromptLogprobs = "refused"
    frozen_samplers: bool | None = None  # a sampling client keeps the weights that it was made of
    sampling_keeps_training: bool | None = None  # sampling never changes the weights in training
    can_sample: bool = False
    wrong: str = ""  # the rows by which samples are not of the weights in training, or padding shows


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server and base model, measured at one time."""

    url: str
    model_name: str
    fingerprint: str  # of the server
    measured_at: str  # ISO 8601, UTC
    facts: ServerFacts
    rows: tuple[Row, ...]
    format: Literal[4] = 4  # a report of another format is measured again
    short: bool = False  # most facts are the server's own word

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ServerReport":
        """Raises ValueError for text that to_json of this version did not write."""
        return TypeAdapter(cls).validate_json(text)


class ProbeFindings:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.facts: dict[str, Any] = {}

    def row(self, group: str, what: str, value: object, verdict: Verdict, note: str = "") -> None:
        self.rows.append(Row(group, what, str(value), verdict, note))

    def judge(self, group: str, what: str, found: bool | None, texts: tuple[str, str], note: str = "") -> None:
        """Add a row for a yes/no question: texts of yes (as on Tinker) and no; `note` is what follows from no."""
        if found is None:
            self.row(group, what, "unclear", "unclear")
        else:
            value, verdict, note = (texts[0], "same", "") if found else (texts[1], "differs", note)
            self.row(group, what, value, verdict, note)

    async def section(self, group: str, measure: Callable[[], Awaitable[None]]) -> None:
        """Run one measurement; a fault of the server becomes a row and does not stop the others."""
        try:
            await measure()
        except BackendError as error:
            self.row(group, MEASUREMENT, f"failed: {error}", "unclear")

    def to_facts(self) -> ServerFacts:
        return ServerFacts(**self.facts)


def load(fingerprint: str, model_name: str) -> ServerReport | None:
    """Return the cached report of exactly this server and model; None when it is missing or unreadable."""
    try:
        report = ServerReport.from_json(_cached(fingerprint, model_name).read_text())
    except (OSError, ValueError):
        return None
    same = (report.fingerprint, report.model_name) == (fingerprint, model_name)
    return report if same else None


def store(report: ServerReport) -> None:
    """Cache the report. Raises OSError when the folder cannot be written."""
    path = _cached(report.fingerprint, report.model_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, report.to_json())


def _cached(fingerprint: str, model_name: str) -> Path:
    key = hashlib.sha256(f"{fingerprint}\n{model_name}".encode()).hexdigest()
    return cache_folder("contracts") / f"{key[:32]}.json"


def show(report: ServerReport, console: Console) -> None:
    """Print the rows in groups, and the number of each verdict."""
    console.print(f"{report.url} with {report.model_name}, measured {report.measured_at}", highlight=False)
    console.print(table_of(report.rows))
    counts = {verdict: sum(row.verdict == verdict for row in report.rows) for verdict in STYLES}
    text = ", ".join(f"{count} {'same as Tinker' if v == 'same' else v}" for v, count in counts.items() if count)
    console.print(text, highlight=False)


def table_of(rows: tuple[Row, ...]) -> Table:
    """Return three columns, so that 80 characters are enough: what, the measured value and its note, the verdict."""
    table = Table(show_edge=False, pad_edge=False)
    for name, ratio in (("what", 5), ("measured", 8)):
        table.add_column(name, overflow="fold", ratio=ratio)
    table.add_column("against Tinker", overflow="fold", min_width=12)
    group = None
    for row in rows:
        if row.group != group:
            table.add_section()
            table.add_row(Text(row.group, "bold"))
        verdict = Text("" if row.verdict == "info" else row.verdict, STYLES.get(row.verdict, ""))
        measured = Text(row.value)
        if row.note:
            measured.append(f"\n{row.note}", "dim")
        table.add_row(Text(f"  {row.what}"), measured, verdict)
        group = row.group
    return table
