"""A conversation with tools as people and the judge read it: exported lines, the terminal, wandb's table, the judge."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.bundled.tau.domain import domain
from harbortrainer.bundled.tau.trial import run_conversation
from harbortrainer.bundled.tau.user import STOP, ScriptedUser
from harbortrainer.cli.main import main
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.learning.trajectory import Trajectory, group_trajectories
from harbortrainer.other_models.judge import conversation_text
from harbortrainer.run.conversations import Conversations, Transcriber
from harbortrainer.run.directory import RunDirectory
from harbortrainer.run.trajectories import write_trajectory
from harbortrainer.tasks.sources import find_sources, load_sources
from harbortrainer.watch.wandb_log import COLUMNS, EVALUATION, TRAINING, sampled_tables
from tests.support.families import QWEN_TOOLS, chat_of
from tests.support.tau_parts import gold_texts, parts, request

CHAT = chat_of(QWEN_TOOLS)
ADDED = {"judge": 0.5}


async def talked(run: Path) -> Trajectory:
    """A conversation of the desk that a judge has shaped: a call that cannot be read, the task's own calls, a text."""
    task = next(task for task in load_sources(find_sources("tau:examples/desk")) if task.name.startswith("desk-cancel"))
    made, _ = parts(["<tool_call>{", *gold_texts(task, CHAT)])
    trial = await run_conversation(request(task, run / "rollouts" / "step_000000"), made, ScriptedUser)
    assert trial.reward == 1.0
    return replace(trial, shaping=ADDED)


def kept(run: Path, trial: Trajectory, batch: str) -> dict[str, Any]:
    Conversations(RunDirectory(run), CHAT).save(batch, [group_trajectories(trial.task_name, [trial])])
    (line,) = read_lines(run / "conversations" / f"{batch}.jsonl")
    return line


@pytest.mark.parametrize("batch", ["step_000000", "eval_000000"])
async def test_a_line_has_system_tools_calls_results_user_and_shaping_apart(batch: str, tmp_path: Path) -> None:
    line = kept(tmp_path, await talked(tmp_path), batch)
    assert (line["reward"], line["shaping"], line["outcome"]) == (1.0, ADDED, "completed")
    assert line["tools"] == domain("examples/desk").schemas
    system, greeting, asked, unreadable, failed, call, result, answer, closing = line["messages"]
    assert [one["role"] for one in (system, greeting, asked)] == ["system", "assistant", "user"]
    assert unreadable == {"role": "assistant", "content": "<tool_call>{"} and failed["error"] is True
    assert [one["name"] for one in call["calls"]] == ["cancel_order"] and not call["content"]
    assert result["role"] == "tool" and "cancelled" in result["content"] and "error" not in result
    assert answer["role"] == "assistant" and closing == {"role": "user", "content": STOP}


async def test_a_damaged_record_gives_the_turns_themselves(tmp_path: Path) -> None:
    trial = await talked(tmp_path)
    (Path(trial.trial_dir) / "conversation.json").write_text("{")
    line = kept(tmp_path, trial, "step_000000")
    assert "tools" not in line and any("cancel_order" in one["content"] for one in line["messages"])


def test_wandbs_table_the_terminal_and_the_judge_show_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = asyncio.run(talked(tmp_path))
    kept(tmp_path, trial, "step_000000")
    kept(tmp_path, trial, "eval_000001")
    tables = sampled_tables(RunDirectory(tmp_path), {"global_step": 1, "group/count": 1.0, "eval/tasks": 1.0})
    (row,) = tables[TRAINING]
    shown = dict(zip(COLUMNS, row, strict=True))
    assert (shown["reward"], json.loads(shown["shaping"]), shown["turns"]) == (1.0, ADDED, 4)
    assert len(tables[EVALUATION]) == 1
    judged = conversation_text(Transcriber(CHAT).conversation(trial))
    write_trajectory(tmp_path / "trajectories" / "step_000000", trial)
    (tmp_path / "config.json").write_text('{"model_name": "models/desk"}')
    assert main(["evaluate", "show", str(tmp_path), trial.trial_name]) == 0
    printed = capsys.readouterr().out
    for text in (shown["conversation"], judged, printed):
        assert 'cancel_order {"order_id": ' in text and text.rstrip().endswith(STOP) and "failed: Error" in text
    assert "shaping: judge 0.5" in printed and "\ntools\n" not in judged
    assert "## tools\n" in shown["conversation"] and "open_ticket" in shown["conversation"].partition("## assistant")[0]
