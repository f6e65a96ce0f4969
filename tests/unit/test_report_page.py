"""The report's own script, run as it stands in the page: everything drawn, sorted, filtered and opened."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.report.panel import Pieces, panel
from harbortrainer.report.trials import TrialRow
from harbortrainer.report.write import write_report
from harbortrainer.run.trajectories import read_trajectory, write_trajectory
from tests.support.made_run import MadeRun
from tests.support.report_walk import Walk

EVIL = "</script><img src=x onerror=alert(1)>\n"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, walked: Walk) -> dict[str, Any]:
    made = MadeRun(tmp_path_factory.mktemp("page") / "run", tasks=2, group=4, turns=2, text=EVIL)
    made.evaluate()
    for step in range(3, 6):
        made.train(step, evaluate=step == 5)
    return walked(write_report(made.path))


def test_a_run_on_several_hosts_has_a_table_of_them(tmp_path: Path, told: dict[str, Any], walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=1, group=4, turns=1)
    made.hosts = "10.0.0.2", "10.0.0.3"
    made.train(0)
    outcomes = walked(write_report(made.path))["sections"]["outcomes"]
    assert "hosttrialsfaultss to start" in outcomes
    assert "10.0.0.22" in outcomes and "10.0.0.32" in outcomes, "two trials each"
    assert "s to start" not in told["sections"]["outcomes"], "without hosts"


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


SAID = [
    {"role": "assistant", "content": "Hi! How can I help you?"},
    {"role": "user", "content": "Cancel #W1 " + EVIL},
    {"role": "assistant", "tool_calls": [{"id": "c1", "name": "cancel_order", "arguments": {"id": "#W1 é"}}]},
    {"role": "tool", "id": "c1", "content": "Error: not pending", "error": True, "requestor": "assistant"},
    {"role": "user", "tool_calls": [{"id": "c2", "name": "check_phone", "arguments": {}, "requestor": "user"}]},
    {"role": "tool", "id": "c2", "content": "5G", "requestor": "user"},
    {"role": "user", "content": "###STOP###"},
]


def test_a_conversation_with_a_user_and_tools_tells_them_apart(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "run", tasks=1, group=2, turns=1)
    made.train(0)
    name = "s000000-p00-g00"
    folder = made.path / "rollouts" / "step_000000" / name
    for file in folder.rglob("trajectory.json"):
        file.unlink()
    value = {"system": "the policy", "tools": [{"function": {"name": "cancel_order"}}], "shown": SAID}
    (folder / "conversation.json").write_text(json.dumps(value))
    shown = panel(made.path, TrialRow(name), Pieces(""))
    assert [message["role"] for message in shown["messages"]] == [
        "system", "tools", "agent", "user", "agent", "result", "user", "the user's tool", "user"
    ]  # fmt: skip
    assert shown["messages"][4]["calls"] == ['cancel_order {"id": "#W1 é"}']
    assert [shown["messages"][n].get("about") for n in (5, 7)] == ["cancel_order failed", "check_phone"]
    assert shown["messages"][-1]["text"] == "###STOP###" and "conversation.json" in shown["files"]
    trajectory = made.path / "trajectories" / "step_000000" / f"{name}.npz"
    write_trajectory(trajectory.parent, replace(read_trajectory(trajectory), shaping={"judge": 0.5}))
    page = walked(write_report(made.path))
    (text,) = [trial["text"] for trial in page["trials"] if trial["name"] == name]
    for words in (
        "1 · systemthe policy",
        "4 · userCancel #W1",
        "6 · result · cancel_order failed",
        "9 · user###STOP###",
    ):
        assert words in text, words
    assert "Added in trainingjudge0.5" in text and page["bare"] == []
    (folder / "conversation.json").write_text('{"messages": [1]}')
    assert [m["role"] for m in panel(made.path, TrialRow(name), Pieces(""))["messages"]] == ["agent"]


def test_several_runs_and_an_empty_one_are_drawn(tmp_path: Path, walked: Walk) -> None:
    made = MadeRun(tmp_path / "a", tasks=2, group=2, turns=1)
    made.train(0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("{}")
    told = walked(write_report(made.path, tmp_path / "b", out=tmp_path / "page.html"))
    assert told["bare"] == [] and "Differences" in told["sections"]["settings"]
    assert walked(write_report(tmp_path / "b"))["all"] == 0


def test_fine_tuning_is_shown_by_its_losses_and_compared(tmp_path: Path, walked: Walk) -> None:
    for name, last in (("a", 0.25), ("b", 0.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"data": ["talks.jsonl"], "learning_rate": last}))
        rows = [
            {"global_step": 0, "sft/held_out_nll": 2.0},
            {"global_step": 1, "sft/nll": 1.5, "train/datums": 32.0, "train/tokens": 1000.0},
            {"global_step": 2, "sft/nll": 1.0, "train/datums": 32.0, "train/tokens": 1000.0, "sft/held_out_nll": last},
        ]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    alone = walked(write_report(tmp_path / "a"))
    assert list(alone["sections"]) == ["loss", "metrics", "settings"] and alone["bare"] == []
    for words in ("loss, last step1first 1.5", "held-out loss, last0.25first 2", "conversations64", "talks.jsonl"):
        assert words in alone["page"], words
    both = walked(write_report(tmp_path / "a", tmp_path / "b", out=tmp_path / "page.html"))
    assert list(both["sections"]) == ["loss", "metrics", "settings"] and both["bare"] == []
    assert "a: held out" in both["sections"]["loss"] and "b: held out" in both["sections"]["loss"]
    made = MadeRun(tmp_path / "c", tasks=2, group=2, turns=1)
    made.train(0)
    mixed = walked(write_report(tmp_path / "a", made.path, out=tmp_path / "mixed.html"))
    assert list(mixed["sections"])[:3] == ["loss", "reward", "outcomes"] and mixed["all"] == 4
