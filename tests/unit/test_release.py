"""What a release is made of agrees: its version in all places, workflows that call what there is."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from harbortrainer.cli import scripts
from harbortrainer.commands import SCRIPTS, fitted
from tests.conftest import ROOT

YAML = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])


def test_the_version_is_the_same_everywhere_and_the_changelog_begins_with_what_is_unreleased() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[:2] == ["Unreleased", version]


@pytest.mark.parametrize("file", YAML, ids=lambda file: file.name)
def test_a_file_of_the_project_can_be_read_and_calls_what_there_is(file: Path) -> None:
    assert yaml.safe_load(file.read_text())
    programs = re.findall(r"(?<![\w/.])((?:scripts|tests)/[\w./]+|\./\w+\.sh)", file.read_text())
    assert [name for name in programs if not (ROOT / name).exists()] == []


def test_scripts_that_are_commands_are_there_and_run() -> None:
    files = [ROOT / script.path for script in SCRIPTS.values()]
    assert [file for file in files if not file.is_file()] == []
    assert [file for file in files if file.suffix != ".py" and not file.stat().st_mode & 0o100] == []


def test_a_page_of_a_wheel_names_its_commands_and_the_place_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first command copied a folder that was not there."""
    monkeypatch.setattr(scripts, "IN_CHECKOUT", False)
    said = scripts.page("tutorial_own_task")
    assert said.startswith("# Train on your own task\n") and f"cp -r {ROOT}/{{datasets,examples,models}} ." in said
    assert "after `harbortrainer setup`" in said and "scripts/setup.sh" not in said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("run scripts/setup.sh --tau", "run harbortrainer setup --tau"),
        ("(scripts/start_skyrl_tx.sh MODEL TP)", "(harbortrainer server start MODEL TP)"),
        ("stop with /env/share/scripts/stop_skyrl_tx.sh 1", "stop with harbortrainer server stop 1"),
        ("continue: ./run_quickstart.sh resume=x", "continue: harbortrainer quickstart resume=x"),
        ("./run.sh max_usd=2", "harbortrainer train backend=tinker max_usd=2"),
        ("./run_skyrl_tx.sh seed=2", "harbortrainer train backend=skyrl-tx seed=2"),
        ("python -m src.train resume=a/scripts/b", "harbortrainer train resume=a/scripts/b"),
        ("see docs/off_policy.md", "see harbortrainer docs off_policy"),
        ("make it with python -m scripts.easy.make_tasks", "make it with harbortrainer datasets easy"),
        ("/data/my_scripts/x.sh and train.src", "/data/my_scripts/x.sh and train.src"),
    ],
)
def test_a_message_names_the_commands_of_a_wheel(said: str, words: str) -> None:
    assert fitted(said) == said
    assert (fitted(said, checkout=False), fitted(words, checkout=False)) == (words, words)
