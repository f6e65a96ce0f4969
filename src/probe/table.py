"""A report as one table that a person can read."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from src.probe.parity import ParityReport
from src.probe.report import Row, ServerReport

STYLES = {"same": "green", "differs": "yellow", "unusable": "red", "unclear": "magenta", "not measured": "dim"}


def show(report: ServerReport, console: Console) -> None:
    """Rows in groups, and how many of each verdict."""
    console.print(f"{report.url} with {report.model_name}, measured {report.measured_at}", highlight=False)
    console.print(table_of(report.rows))
    counts = {verdict: sum(row.verdict == verdict for row in report.rows) for verdict in STYLES}
    text = ", ".join(f"{count} {'same as Tinker' if v == 'same' else v}" for v, count in counts.items() if count)
    console.print(text, highlight=False)


def table_of(rows: tuple[Row, ...]) -> Table:
    """What, measured (with what follows from it) and the verdict; three columns, so that 80 characters are enough."""
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


def show_parity(report: ParityReport, console: Console) -> None:
    console.print(f"A = {report.a}, B = {report.b}, {report.model_name}; tolerances for {report.precision} weights")
    table = Table(pad_edge=False)
    for name in ("", "A", "B", "difference", "tolerance", "verdict"):
        table.add_column(name, overflow="fold")
    colours = {"equal": "green", "differs": "red", "unclear": "magenta"}
    for row in report.rows:
        cells = map(Text, (row.what, row.a, row.b, row.difference, row.tolerance))
        table.add_row(*cells, Text(row.verdict, colours.get(row.verdict, "dim")))
    console.print(table)
    console.print("equal within the tolerances" if report.equal else "they differ")
