"""What the report's tests share: a made-up run, and what is in a page."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from tests.support.made_run import MadeRun


def small_run(path: Path) -> MadeRun:
    """An evaluation, then two batches of 3 tasks x 4 trials."""
    run = MadeRun(path, tasks=3, group=4, turns=2)
    run.evaluate()
    run.train(0)
    run.train(1)
    return run


def unpacked(data: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def blobs(page: Path) -> dict[str, Any]:
    found = re.findall(r'<script type="text/plain" id="(\w+)">([^<]*)</script>', page.read_text())
    return {name: unpacked(blob) for name, blob in found}


def only_run(page: Path) -> dict[str, Any]:
    return blobs(page)["data"]["runs"][0]
