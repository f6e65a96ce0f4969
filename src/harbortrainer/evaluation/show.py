"""The commands `evaluate show` and `evaluate export`: trials and conversations of a run or evaluation."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from harbortrainer.cli.output import wide_console
from harbortrainer.commands import command
from harbortrainer.durable.files import read_json
from harbortrainer.errors import UserError, harmless
from harbortrainer.evaluation.arguments import ExportArgs, ShowArgs
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.tools import transcribed
from harbortrainer.run.conversations import Conversations, Message, Transcriber, sampled_of
from harbortrainer.run.directory import RunDirectory, base_model, open_run_directory
from harbortrainer.run.trajectories import read_trajectory

STYLES = {"user": "cyan", "assistant": "green"} | dict.fromkeys(("prompt", "system", "tools"), "magenta")
STYLES |= {"tool": "dim", "the user's tool": "dim", "history": "yellow"}


async def show(args: ShowArgs) -> int:
    """Return a table of trials, or one conversation. Raises UserError."""
    run, console = open_run_directory(args.dir, field=""), wide_console()
    files = [file for folder in _batches(run) for file in sorted(folder.glob("*.npz"))]
    if not files:
        raise UserError(f"{run.path}: no trial has ended there")
    if args.trial is None:
        console.print(_table(files))
        return 0
    wanted = [file for file in files if args.trial in (file.stem, f"{file.parent.name}/{file.stem}")]
    if not wanted:
        raise UserError(
            f"show: no trial {args.trial} in {run.path}; its trials: {command(f'evaluate show {run.path}')}"
        )
    transcriber = Transcriber(_template(run))
    for file in wanted:
        _print(read_trajectory(file), transcriber, console)
    return 0


async def export(args: ExportArgs) -> int:
    """Write conversations/BATCH.jsonl: all trials of evaluations, and chosen ones of training batches.

    With a step: every trial of the batches of that step. Raises UserError.
    """
    run, step = open_run_directory(args.dir, field=""), args.step
    conversations = Conversations(run, _template(run))
    folders = [folder for folder in _batches(run) if step is None or folder.name.endswith(f"_{step:06d}")]
    if not folders:
        raise UserError(f"export: nothing was run in step {step} of {run.path}; leave STEP out for all")
    for folder in folders:
        trials = map(read_trajectory, sorted(folder.glob("*.npz")))
        chosen = sampled_of(trials) if folder.name.startswith("step") and step is None else trials
        print(conversations.write(folder.name, chosen))
    return 0


def _batches(run: RunDirectory) -> list[Path]:
    return sorted(folder for folder in (run.path / "trajectories").glob("*") if folder.is_dir())


def _template(run: RunDirectory) -> ChatTemplate:
    config = read_json(run.config)
    thinking, tool_format = bool(config.get("enable_thinking")), config.get("tool_format", "template")
    return ChatTemplate.load(base_model(run), thinking, tool_format)


def _table(files: Sequence[Path]) -> Table:
    width = max(len(file.stem) for file in files)  # a user copies the name
    table = Table("batch", Column("trial", no_wrap=True, min_width=width), "task")
    for column in ("reward", "outcome", "turns", "tokens"):
        table.add_column(column, justify="left" if column == "outcome" else "right")
    for file in files:
        t = read_trajectory(file)
        reward = "-" if t.reward is None else f"{t.reward:g}"
        counts = (str(len(t.turns)), str(t.n_sampled_tokens))
        table.add_row(file.parent.name, t.trial_name, t.task_name, reward, t.outcome.value, *counts)
    return table


def _print(trajectory: Trajectory, transcriber: Transcriber, console: Console) -> None:
    reward = "no grade" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    head = f"{trajectory.trial_name}  {trajectory.task_name}  {reward}  {trajectory.outcome.value}"
    console.rule(Text(harmless(f"{head}  {trajectory.detail}".rstrip())))
    if added := trajectory.shaping:
        console.print(Text("shaping: " + ", ".join(f"{name} {value:g}" for name, value in added.items())))
    for message in transcriber.conversation(trajectory):
        _print_message(message, console)


def _print_message(message: Message, console: Console) -> None:
    notes = [f"{message['tokens']} tokens"] if "tokens" in message else []
    notes += ["truncated"] if message.get("truncated") else []
    who, text = transcribed(message)
    console.print(Text(f"\n{who}" + (f" ({', '.join(notes)})" if notes else ""), style="bold"))
    if "thinking" in message:
        console.print(Text(harmless(message["thinking"]), style="dim"), soft_wrap=True)
    console.print(Text(harmless(text), style=STYLES[who]), soft_wrap=True)
