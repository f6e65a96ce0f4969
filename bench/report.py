"""Tables of the benchmarks: shown, and written between two markers of a document."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harbortrainer.docker.daemon import engine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "RESULTS.md"
Rows = Sequence[Sequence[str]]


def publish(
    module: str,
    name: str,
    headings: Sequence[str],
    rows: Rows,
    document: Path | None,
    below: str = "",
    wrong: Sequence[str] = (),
) -> None:
    """Show a table; with a document, put it there too, with the lines `below` it. Exits with 1 if any is `wrong`."""
    table = Table(*headings, title=name)
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)
    print(below)
    if document is not None:
        replace_part(document, name, f"{circumstances(module)}\n\n{markdown(headings, rows)}{below}")
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


def markdown(headings: Sequence[str], rows: Rows) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def circumstances(module: str) -> str:
    """When, where and by which command: one line."""
    version: Mapping[str, str] = engine().version()
    command = shlex.join(["python", "-m", module, *(word for word in sys.argv[1:] if word != "--write")])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    host = f"{os.cpu_count()} CPUs, {memory:.0f} GiB, {platform.system()} {platform.release()}"
    docker = f"Docker {version['Version']} (API {version['ApiVersion']})"
    return f"{datetime.now(UTC):%Y-%m-%d}, {host}, {docker}: `{command}`"


def replace_part(document: Path, name: str, text: str) -> None:
    """Put `text` between the document's markers of that name, which are added at its end when they are not there."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = document.read_text() if document.exists() else ""
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    before, _, rest = old.partition(begin)
    document.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}")
