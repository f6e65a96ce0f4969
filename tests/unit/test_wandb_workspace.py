"""The view of a wandb project: it can be built here, and names no metric that is not logged."""

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from src.sinks import panels
from src.sinks.panels import FIRST, LOOK_FIRST, TOGETHER, Plot, sections
from src.wandb_workspace import TABLES, main
from tests.unit.test_metrics_documented import documented


@pytest.fixture(scope="module")
def view() -> dict[str, Any]:
    """As it would be sent, made in a process of its own: wandb's package is slow and changes the terminal."""
    command = [sys.executable, "-m", "src.wandb_workspace", "p", "entity=e", "json=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout)


def named(plots: Any) -> list[str]:
    return [metric for plot in plots for metric in plot.metrics]


def test_panels_name_every_metric_that_is_logged_and_no_other() -> None:
    pages = sections()[1:]
    assert sorted(named(plot for section in pages for plot in section.plots)) == sorted(documented())
    assert set(named([*LOOK_FIRST, *TOGETHER])) <= set(documented())


def test_a_metric_that_is_new_in_the_page_gets_a_panel() -> None:
    page = "## New\n\n| metric | unit |\n| `new/a` | s | what | how |\n| `new/*/*` | | what | how |\n## Empty\n"
    found = sections(page)
    assert [section.name for section in found] == [FIRST, "New"]
    assert found[1].plots == (Plot("new/a", ("new/a",), "s"), Plot("new/*/*", ("new/*/*",), ""))


def test_lines_that_are_read_together_stand_together() -> None:
    by_name = {section.name: section.plots for section in sections()}
    evaluation = next(plot for plot in by_name["Evaluation"] if "eval/reward_mean" in plot.metrics)
    assert evaluation.metrics == ("eval/reward_mean", "eval/reward_low", "eval/reward_high")


def test_patterns_match_as_in_the_page() -> None:
    for plot in (Plot("", (name,)) for name in ("outcome/*", "eval/reward_mean/*/*", "spend/usd_*")):
        assert plot.pattern is not None
        for name in ("outcome/completed", "eval/reward_mean/domain/a b", "spend/usd_x", "eval/reward_mean", "x/y"):
            same_depth = name.count("/") == plot.metrics[0].count("/")
            assert bool(re.match(plot.pattern, name)) == (same_depth and fnmatchcase(name, plot.metrics[0]))


def test_the_view_opens_with_what_to_look_at_first(view: dict[str, Any]) -> None:
    shown = view["spec"]["section"]["panel_bank_config"]["sections"]
    first = shown[0]
    assert [section["name"] for section in shown] == [FIRST, TABLES, *(s.name for s in sections()[1:])]
    assert first["pinned"] and first["is_open"] and not any(section["pinned"] for section in shown[1:])
    lines = [panel["config"] for panel in first["panels"]]
    assert [line["chart_title"] for line in lines] == [plot.title for plot in LOOK_FIRST]
    assert {line["x_axis"] for line in lines} == {"global_step"}


def test_the_view_names_what_is_documented_only(view: dict[str, Any]) -> None:
    shown = view["spec"]["section"]["panel_bank_config"]["sections"]
    lines = [p["config"] for section in shown if section["name"] != TABLES for p in section["panels"]]
    names = {name for line in lines for name in line["metrics"] or ()}
    patterns = {line["metric_regex"] for line in lines if line["metric_regex"]}
    assert names == {name for name in documented() if "*" not in name}
    assert patterns == {Plot("", (name,)).pattern for name in documented() if "*" in name}


@pytest.mark.parametrize("arguments", [["a", "b"], ["entity=x"], ["p", "size=3"], ["p"]])
def test_wrong_arguments_and_a_missing_key_are_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_the_page_is_in_the_repository() -> None:
    assert panels.PAGE.is_file()
