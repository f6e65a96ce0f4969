"""A run of fine-tuning in three phases: prepare (local checks), wire (server, journals), train (the loop)."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from harbortrainer.backend.terms import agree_on_sft
from harbortrainer.budget.account import Spending
from harbortrainer.budget.budget import Budget, Pricing, count, no_price, pricing_of
from harbortrainer.durable.jsonl import read_lines
from harbortrainer.run.checkpoints import CheckpointLog, Keep
from harbortrainer.run.config_changes import to_save
from harbortrainer.run.directory import DATASET_FILE, RunDirectory, new_run_directory, open_run_directory
from harbortrainer.run.ledger import require_ledger
from harbortrainer.sft.dataset import Dataset, check_same, load_dataset
from harbortrainer.sft.trainer import HELD_OUT, Lessons, SftTrainer, best_step, waited
from harbortrainer.sft_config import SftConfig
from harbortrainer.stopping import Stop
from harbortrainer.tasks.order import TaskOrder
from harbortrainer.text import counted
from harbortrainer.training.outside import Outside
from harbortrainer.training.plan import installed_versions
from harbortrainer.training.start import described, find_start, identity, recorded
from harbortrainer.training.wiring import Prepared, Wiring, run_loop


@dataclass(frozen=True, slots=True)
class SftPlan:
    """What a run of fine-tuning will do, known before anything is spent."""

    config: SftConfig
    dataset: Dataset
    earlier: RunDirectory | None
    pricing: Pricing

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


async def prepare(config: SftConfig, outside: Outside) -> Prepared[SftPlan]:
    """Check everything that needs no server: conversations, prices, chat template, start. Raises UserError."""
    return await asyncio.to_thread(_prepared, config, outside)


def _prepared(config: SftConfig, outside: Outside) -> Prepared[SftPlan]:
    pricing = pricing_of(config)
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    data = load_dataset(config, template)
    earlier = None if config.resume is None else open_run_directory(config.resume)
    if earlier is not None:
        require_ledger(earlier.ledger)
        check_same(earlier, data)
    trained = identity(config, template)
    start = find_start(config.init_from, trained, config.backend, earlier)
    plan = SftPlan(config, data, earlier, pricing)
    tokens = sum(one.n_tokens for one in data.train)
    notes = [
        *data.notes,
        *([described(start)] if start is not None and earlier is None else []),
        f"{counted(len(data.train), 'conversations')}, {count(tokens)}; {len(data.held_out)} held out; "
        f"{counted(plan.total_steps, 'steps')} of {counted(min(config.batch_size, len(data.train)), 'conversations')}",
    ]
    return Prepared(plan=plan, template=template, trained=trained, start=start, notes=notes)


async def dry_run(config: SftConfig, outside: Outside | None = None) -> int:
    """Print what the run would train on and cost. Exit status 0. Raises UserError."""
    prepared = await prepare(config, outside or Outside())
    lessons, pricing = prepared.plan.lessons([(0, config)]), prepared.plan.pricing
    trained = sum(len(s.tokens_T) for step in range(lessons.total_steps) for s in lessons.batch(step))
    measured = sum(map(lessons.due, range(lessons.total_steps + 1)))
    spending = Spending(measured * sum(one.n_tokens for one in lessons.held_out), 0.0, trained)
    usd = Budget(config, pricing).usd(spending) if pricing.price else None
    cost = f"{usd:.2f} USD" if usd is not None else no_price(config) if config.backend == "tinker" else "your server's"
    for line in (*prepared.notes, f"trains on {count(trained)}, measures on {count(spending.prompt)}; cost: {cost}"):
        print(line)
    return 0


async def run_sft(config: SftConfig, stop: Stop | None = None, outside: Outside | None = None) -> int:
    """Prepare, wire and train, to the end or until `stop` is asked. Exit status: 0 done, else that of `stop`.

    Raises UserError for what the user can fix; the run directory can then be resumed.
    """
    longer = "n_epochs, max_steps or patience"
    return await run_loop(config, stop, outside, prepare, agree_on_sft, wire, trials=False, longer=longer)


async def wire(prepared: Prepared[SftPlan], wiring: Wiring[SftConfig]) -> SftTrainer:
    """Open the run directory and create or restore the adapter.

    Raises UserError; a new run that is refused leaves no folder.
    """
    config, display = wiring.config, wiring.display
    keep = Keep(config.keep_checkpoints, 1 if config.patience else 0, HELD_OUT, lower=True)
    work = wiring.workspace(prepared, lambda: _directory(prepared.plan), keep)
    lessons = prepared.plan.lessons(wiring.configs(work))
    effective = wiring.record(work, prepared.trained, recorded(prepared.start, {}))
    for line in (*wiring.terms.notes, f"{config.backend} at {wiring.server.url}"):
        display.say(line)
    with work.undone_if_refused(display):
        policy = await wiring.adapter(work, prepared.start)
    parts, step = await wiring.parts(work, policy, prepared.trained, effective)
    return SftTrainer(config, parts, lessons, step)


def _directory(plan: SftPlan) -> RunDirectory:
    config = plan.config
    files = {
        "config.json": to_save(config),
        "versions.json": installed_versions(),
        DATASET_FILE: plan.dataset.record(),
    }
    label = config.wandb_name or f"sft-{Path(config.model_name).name}"
    return new_run_directory(config.logs_dir, config.run_name, label, files)
