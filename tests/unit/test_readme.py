import subprocess
import sys
import typing
from pathlib import Path

import chz

from harbortrainer.config import Config
from harbortrainer.setting import settings
from harbortrainer.sft_config import SftConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_settings_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "scripts/write_fields.py", "--check"], check=False)
    assert done.returncode == 0, "run scripts/write_fields.py"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_a_setting_of_a_few_values_names_each_of_them():
    unsaid = [
        (name, value)
        for kind in (Config, SftConfig)
        for name, field in chz.chz_fields(kind).items()
        if typing.get_origin(field.final_type) is typing.Literal
        for value in typing.get_args(field.final_type)
        if value not in settings(kind)[name].doc
    ]
    assert unsaid == []
