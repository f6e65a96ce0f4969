"""`python -m src.tasks list` and the lines of a check, as a script reads them."""

import json
from pathlib import Path

import pytest

from harbortrainer.cli.main import main
from tests.support.fake_engine import FakeEngine, use_engine
from tests.support.task_folder import write_task
from tests.support.tiers import first

LONG = "a-task-whose-name-is-far-longer-than-a-column-of-a-table-on-a-terminal-of-eighty-columns-would-hold"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def listed(tmp_path: Path) -> Path:
    write_task(tmp_path / "set" / LONG, toml=f'[metadata]\ncategory = "{"c" * 90}"\n', head='schema_version = "1.4"\n')
    return write_task(tmp_path / "set" / "short")


def test_a_list_that_is_piped_is_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed(tmp_path)
    assert main(["tasks", "list", str(tmp_path / "set")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(LONG)]
    assert "c" * 90 in line


def test_sources_and_globs_are_those_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, other = listed(tmp_path), write_task(tmp_path / "other" / "alone")
    for words, names in {
        ("tasks_exclude=set/a-*",): [other.name, short.name],
        ("tasks_include=sh*,alone",): [other.name, short.name],
        (f"{short}", "tasks_include=al*"): [other.name, short.name],
    }.items():
        assert main(["tasks", "list", str(tmp_path / "set"), str(tmp_path / "other"), "--json", *words]) == 0
        assert sorted(row["name"] for row in json.loads(capsys.readouterr().out)) == sorted(names)
    for words, why in {
        (str(tmp_path / "set"), "tasks_include=zz*"): "tasks_include=zz*: matches none of 2 tasks",
        (str(tmp_path / "set"), "tasks_exclude=*"): "tasks_exclude=*: leaves no task",
        ("tau:retail",): "tau:retail: has conversations, not folders of Harbor tasks",
        (str(tmp_path / "none"),): "is not a folder; give a folder of Harbor task directories",
    }.items():
        assert main(["tasks", "list", *words]) == 2 and why in capsys.readouterr().err


def test_names_in_series_are_families_as_in_a_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(10):
        for level in ("easy", "hard"):
            word = f"{number}{level}"
            files = {"instruction.md": f"Write {word}.\n"}
            write_task(tmp_path / "set" / f"task{number}_{level}", solve=word, test=f"grep {word} a\n", files=files)
    assert main(["tasks", "list", str(tmp_path / "set")]) == 0
    assert "20 tasks in 10 families" in capsys.readouterr().out


def test_a_list_names_missing_images_and_does_without_docker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(tmp_path)
    with monkeypatch.context() as patch:
        use_engine(patch, FakeEngine())
        assert main(["tasks", "list", str(tmp_path / "set")]) == 0
        assert f"tasks whose images are missing here: 2 to build ({LONG}, short)\n" in capsys.readouterr().out
        assert main(["tasks", "list", str(tmp_path / "set"), "--json"]) == 0
        assert [row["image"] for row in json.loads(capsys.readouterr().out)] == ["to build"] * 2
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["tasks", "list", str(tmp_path / "set")]) == 0
    assert capsys.readouterr().out.endswith("task images: not looked at, Docker does not answer\n")


def test_brackets_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(
        tmp_path / "set" / "one", toml='[metadata]\ncategory = "[/web] [bold]"\n', head='schema_version = "1.4"\n'
    )
    assert main(["tasks", "list", str(tmp_path / "set")]) == 0
    assert "[/web] [bold]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "toml", first(1, ["[metadata]\ncategory = 2020-01-01\n", "metadata = 3\n", "steps = 3\n", "environment = 3\n"])
)
def test_a_task_whose_settings_are_of_another_form_is_listed(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_task(tmp_path / "set" / "one")
    (task / "task.toml").write_text(toml)
    for command in (["list"], ["list", "--json"]):
        assert main(["tasks", *command, str(tmp_path / "set")]) == 0
        assert "one" in capsys.readouterr().out
