"""A run of fine-tuning in three phases: prepare (local checks), wire (server, journals), train (the loop)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.policy import SavedState
from harbortrainer.backend.terms import Terms, agree_on_sft
from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import Budget, Pricing, count, no_price, pricing_of
from harbortrainer.commands import command
from harbortrainer.durable.files import write_json
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.checkpoints import CheckpointLog, Keep, PolicyIdentity
from harbortrainer.run.config_changes import ConfigHistory, note, to_json, to_save
from harbortrainer.run.directory import DATASET_FILE, RunDirectory, held, new_run_directory, open_run_directory
from harbortrainer.run.ledger import require_ledger
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.sft.dataset import Dataset, check_same, load_dataset
from harbortrainer.sft.trainer import HELD_OUT, Lessons, SftTrainer, best_step, waited
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import Stop
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.text import counted
from harbortrainer.training.loop import LoopParts
from harbortrainer.training.outage import create_or_restore, delete_orphans
from harbortrainer.training.outside import Outside
from harbortrainer.training.plan import installed_versions
from harbortrainer.training.start import described, find_start, recorded
from harbortrainer.training.workspace import Workspace, open_workspace, undone_if_refused
from harbortrainer.watch.display import Display


@dataclass(frozen=True, slots=True)
class PreparedTuning:
    """All that is known about a run before it connects to a server. `start`: None = the seed."""

    config: SftConfig
    dataset: Dataset
    earlier: RunDirectory | None
    pricing: Pricing
    trained: PolicyIdentity
    start: SavedState | None

    def lessons(self, configs: list[tuple[int, SftConfig]]) -> Lessons:
        c, train = self.config, self.dataset.train
        order = TaskOrder(
            train,
            batch_size=min(c.batch_size, len(train)),
            n_epochs=c.n_epochs,
            max_steps=c.max_steps,
            seed=c.seed,
            full=True,  # each size of a batch is another program that a server compiles
        )
        return Lessons(order, self.dataset.held_out, configs)

    @property
    def total_steps(self) -> int:
        return self.lessons([]).total_steps

    @property
    def finished(self) -> bool:
        """Whether the run to resume has nothing left to do."""
        latest = CheckpointLog(self.earlier.checkpoints).latest() if self.earlier is not None else None
        if self.earlier is None or latest is None or self.earlier.pending_row.exists():
            return False
        rows = read_lines(self.earlier.metrics)
        converged = bool(self.config.patience) and waited(rows) >= self.config.patience
        # a process that was killed at its end has left states behind the best one
        return latest.step >= self.total_steps or (converged and latest.step <= (best_step(rows) or 0))

    @property
    def notes(self) -> list[str]:
        data, steps = self.dataset, self.total_steps
        tokens = sum(one.n_tokens for one in data.train)
        start = [described(self.start)] if self.start is not None and self.earlier is None else []
        return [
            *data.notes,
            *start,
            f"{counted(len(data.train), 'conversations')}, {count(tokens)}; {len(data.held_out)} held out; "
            f"{counted(steps, 'steps')} of {counted(min(self.config.batch_size, len(data.train)), 'conversations')}",
        ]


def prepare(config: SftConfig, outside: Outside) -> PreparedTuning:
    """Check everything that needs no server: conversations, prices, chat template, start. Raises UserError."""
    pricing = pricing_of(config)
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    dataset = load_dataset(config, template)
    earlier = None if config.resume is None else open_run_directory(config.resume)
    if earlier is not None:
        require_ledger(earlier.ledger)
        check_same(earlier, dataset)
    renderer = template.renderer
    trained = PolicyIdentity(config.model_name, config.lora_rank, renderer.name, renderer.thinking)
    start = find_start(config.init_from, trained, config.backend, earlier)
    return PreparedTuning(config, dataset, earlier, pricing, trained, start)


async def dry_run(config: SftConfig, outside: Outside | None = None) -> int:
    """Print what the run would train on and cost. Exit status 0. Raises UserError."""
    prepared = await asyncio.to_thread(prepare, config, outside or Outside())
    lessons = prepared.lessons([(0, config)])
    trained = sum(len(s.tokens_T) for step in range(lessons.total_steps) for s in lessons.batch(step))
    measured = sum(map(lessons.due, range(lessons.total_steps + 1)))
    spending = Spending(measured * sum(one.n_tokens for one in lessons.held_out), 0.0, trained)
    usd = Budget(config, prepared.pricing).usd(spending) if prepared.pricing.price else None
    cost = f"{usd:.2f} USD" if usd is not None else no_price(config) if config.backend == "tinker" else "your server's"
    for line in (*prepared.notes, f"trains on {count(trained)}, measures on {count(spending.prompt)}; cost: {cost}"):
        print(line)
    return 0


async def run_sft(config: SftConfig, stop: Stop | None = None, outside: Outside | None = None) -> int:
    """Prepare, wire and train, to the end or until `stop` is asked. Exit status: 0 done, else that of `stop`.

    Raises UserError for what the user can fix; the run directory can then be resumed.
    """
    stop, outside = stop or Stop(), outside or Outside()
    display = Display()
    display.follow(stop, trials=False)
    stop.limit(config, display.say)
    with display, contextlib.ExitStack() as holding:
        if config.resume is not None:
            holding.enter_context(held(open_run_directory(config.resume)))
        display.doing("reading conversations")
        prepared = await asyncio.to_thread(prepare, config, outside)
        for line in prepared.notes:
            display.say(line)
        if prepared.finished:
            display.say(f"{config.resume} is complete; to continue, give a higher n_epochs, max_steps or patience")
            return 0
        async with wire(prepared, display, stop, outside) as trainer:
            done = f"done; train on it with: {command(f'train init_from={trainer.run_directory.path}')} ..."
            return await trainer.finish(outside, done)


@contextlib.asynccontextmanager
async def wire(prepared: PreparedTuning, display: Display, stop: Stop, outside: Outside) -> AsyncIterator[SftTrainer]:
    """Connect to the server, open the run directory and make the parts; all is released at the end of the block.

    Raises UserError.
    """
    config = prepared.config
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(outside.connected(config, display))
        terms = agree_on_sft(config, backend.kind, backend.contract, backend.max_context)
        best = 1 if config.patience else 0
        workspace = open_workspace(
            config, prepared.pricing, prepared.earlier, lambda: _directory(prepared), prepared.total_steps,
            prepared.trained, stack=stack, display=display, stop=stop,
            keep=Keep(config.keep_checkpoints, best, HELD_OUT, lower=True),
        )  # fmt: skip
        lessons = prepared.lessons(_settings_by_step(config, workspace))
        effective = _record_effective(prepared, workspace, backend, terms)
        with undone_if_refused(workspace):
            policy = await create_or_restore(backend, config, workspace.checkpoints, display, prepared.start)
        stack.push_async_callback(policy.close)
        await delete_orphans(policy, workspace.checkpoints)
        run, record = workspace.run, to_json(config) | {"effective": effective}
        wandb = outside.start_wandb(run, config.wandb_project, config.wandb_name, record, display.say)
        parts = LoopParts(
            policy=policy, trained=prepared.trained, metrics=MetricsLog(run, wandb), checkpoints=workspace.checkpoints,
            ledger=workspace.ledger, budget=workspace.budget, display=display, stop=stop,
        )  # fmt: skip
        latest = workspace.checkpoints.latest()
        start = latest.step if latest else 0
        if prepared.earlier is not None:
            workspace.ledger.resumed(start)
        yield SftTrainer(config, run, parts, lessons, start)


def _directory(prepared: PreparedTuning) -> RunDirectory:
    config = prepared.config
    files = {
        "config.json": to_save(config),
        "versions.json": installed_versions(),
        DATASET_FILE: prepared.dataset.record(),
    }
    label = config.wandb_name or f"sft-{Path(config.model_name).name}"
    return new_run_directory(config.logs_dir, config.run_name, label, files)


def _settings_by_step(config: SftConfig, workspace: Workspace) -> list[tuple[int, SftConfig]]:
    """(first step, settings); records and prints what this process changes."""
    history, trained = ConfigHistory(workspace.run, SftConfig), workspace.ledger.steps_trained
    changes = history.changes(config)
    history.record(changes, trained)
    for change in changes:
        workspace.display.say(note(change, trained))
    return history.configs()


def _record_effective(prepared: PreparedTuning, workspace: Workspace, backend: Backend, terms: Terms) -> dict[str, Any]:
    """What the run really trains with: written to its folder, printed, and returned for wandb."""
    server = {"url": backend.url, "kind": backend.kind.name, "contract": backend.contract.source}
    effective = {"server": server, "policy": asdict(prepared.trained)} | asdict(terms) | recorded(prepared.start, {})
    write_json(workspace.run.effective, effective)
    for line in (*terms.notes, f"{prepared.config.backend} at {backend.url}"):
        workspace.display.say(line)
    return effective
