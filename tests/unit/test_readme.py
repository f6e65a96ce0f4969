import subprocess
import sys
from pathlib import Path

import chz

from harbortrainer.config import Config

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_settings_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "scripts/write_fields.py", "--check"], check=False)
    assert done.returncode == 0, "run scripts/write_fields.py"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_field_is_on_the_page():
    text = (ROOT / "docs/settings.md").read_text()
    assert [name for name in chz.chz_fields(Config) if f"`{name}`" not in text] == []
