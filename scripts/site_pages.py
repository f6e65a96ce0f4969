"""Puts the repository's pages into one folder for the site, with links that lead there: site_pages.py FOLDER."""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {  # of pages that are not in docs/
    "README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md", "bench/RESULTS.md": "results.md", "datasets/README.md": "datasets.md",
    "tests/README.md": "testing.md",
}  # fmt: skip
LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LIST_AFTER_TEXT = re.compile(r"^(?!\s*(?:[*\-+]|\d+\.)\s|\s*[|#>])(\S.*)\n(?=(?:[*\-]|1\.) )", re.MULTILINE)


def pages() -> dict[Path, str]:
    """File -> name on the site."""
    named = {ROOT / path: name for path, name in NAMES.items()}
    # docs/README.md is the index that the navigation of the site takes the place of
    return named | {page: page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"}


def written(page: Path, names: dict[Path, str], files: set[Path]) -> str:
    """The text of a page for the site. Adds the files that it links to, which are no pages, to `files`."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if target == ROOT / "docs" / "README.md" or target == ROOT / "docs":
            return f"{found[1]}index.md)"
        if target in names:
            return f"{found[1]}{names[target]}{found[3]}"
        if target.is_file():
            files.add(target)
            return f"{found[1]}{copy_of(target)})"
        return f"{found[1]}index.md)"  # a folder of the repository

    parts = FENCE.split(page.read_text())
    for at in range(0, len(parts), 2):
        parts[at] = LIST_AFTER_TEXT.sub(r"\1\n\n", LINK.sub(link, parts[at]))  # a list needs an empty line before it
    return "".join(parts)


def copy_of(file: Path) -> Path:
    """Where the site has a file that is no page; a suffix of Markdown would make it one."""
    copy = Path("files") / file.relative_to(ROOT)
    return copy.with_suffix(".txt") if copy.suffix == ".md" else copy


def main(folder: Path) -> None:
    names, files = pages(), set[Path]()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page, name in names.items():
        (folder / name).write_text(written(page, names, files))
    for file in files:
        copy = folder / copy_of(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
