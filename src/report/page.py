"""The page: one HTML file that needs nothing else. What comes from runs is compressed JSON in it, never markup."""

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STATIC = Path(__file__).with_name("static")
_SCRIPTS = ("elements", "scales", "plots", "table", "trial", "sections", "costs", "tables", "main")


def packed(value: Any) -> str:
    """JSON, gzipped, base64: no character of it means anything to HTML. What is no finite number becomes null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a browser reads no NaN
        text = json.dumps(_finite(value), separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def unpacked(data: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def page(title: str, data: str, panels: Sequence[str]) -> str:
    """`data` and `panels` as `packed`; the script runs only as it is here (its hash is in the page's policy)."""
    script = "\n".join((_STATIC / f"{name}.js").read_text() for name in _SCRIPTS)
    script = f'"use strict";\n{script}'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    blobs = "\n".join(
        f'<script type="text/plain" id="{name}">{blob}</script>'
        for name, blob in [("data", data), *((f"panel{index}", panel) for index, panel in enumerate(panels))]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{(_STATIC / "page.css").read_text()}</style>
</head>
<body>
<noscript>This report draws itself: allow scripts for this file.</noscript>
<main id="page"><p id="waiting">Unpacking…</p></main>
{blobs}
<script>{script}</script>
</body>
</html>
"""


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
