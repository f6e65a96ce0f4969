"""The site is built of the pages, without a warning, and fetches nothing from elsewhere."""

import re

from tests.conftest import ROOT, succeed

ELSEWHERE = re.compile(r'<(?:link|script|img)\b[^>]*(?:src|href)="(?:https?:)?//')


def test_the_site_builds_with_all_pages_and_nothing_from_elsewhere() -> None:
    said = succeed("scripts/site")
    site = ROOT / ".state" / "site"
    assert f"site: {site}/index.html" in said and "WARNING -" not in said
    made = {page.stem for page in site.glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"} <= made
    assert [page.name for page in site.glob("*.html") if ELSEWHERE.search(page.read_text())] == []
    assert "staleness" in (site / "search" / "search_index.json").read_text()
