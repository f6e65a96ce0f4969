"""One wiring for train, sft, evaluate and serve: opens what each of them needs, and closes it in reverse order."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.contract import Contract, ServerKind
from harbortrainer.backend.policy import PolicyTrainer, SavedState
from harbortrainer.backend.terms import Terms
from harbortrainer.backend.users import opened_users
from harbortrainer.budget.budget import Budget
from harbortrainer.config import Config, RunSettings
from harbortrainer.durable.files import write_json
from harbortrainer.errors import ServerLost, UserError
from harbortrainer.learning.trajectory import Trajectory
from harbortrainer.other_models.judge import Judge, open_judge
from harbortrainer.other_models.users import Users
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.checkpoints import BEST, CheckpointLog, Keep, PolicyIdentity, check_base, check_identity
from harbortrainer.run.config_changes import ConfigHistory, SettingChange, note, to_json
from harbortrainer.run.conversations import Transcriber
from harbortrainer.run.directory import RunDirectory, held, open_run_directory, run_ids
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.stopping import Stop
from harbortrainer.training.loop import Loop, LoopParts
from harbortrainer.training.outage import create_or_restore, delete_orphans
from harbortrainer.training.outside import Outside
from harbortrainer.watch.display import Display
from harbortrainer.watch.wandb_log import wandb_project

type Agree[C: RunSettings] = Callable[[C, ServerKind, Contract, int | None], Terms]
NO_TERMS = Terms({}, {}, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared[P]:
    """All that is known about a run before it connects to a server. `notes`: lines for the user.

    `plan`: has `earlier` (the directory of a run that is resumed), `pricing`, `total_steps` and `finished`.
    """

    plan: P
    template: ChatTemplate
    trained: PolicyIdentity
    start: SavedState | None  # what the weights start from, None = the seed
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The run directory with its journals."""

    run: RunDirectory
    is_new: bool
    ledger: Ledger
    budget: Budget
    checkpoints: CheckpointLog

    @contextlib.contextmanager
    def undone_if_refused(self, display: Display) -> Iterator[None]:
        """Remove the folder of a new run that is refused within the block; one whose server is lost can be resumed."""
        try:
            yield
        except UserError as error:
            if isinstance(error, ServerLost):
                display.say(f"{self.run.path} is kept; continue with: {self.run.resume}")
            elif self.is_new:
                shutil.rmtree(self.run.path)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring[C: RunSettings]:
    """The parts that a command has opened. `backend`: None = it needs no server; `terms`: agreed on with it."""

    config: C
    template: ChatTemplate
    outside: Outside
    display: Display
    stop: Stop
    stack: contextlib.AsyncExitStack
    backend: Backend | None
    terms: Terms
    sampler: PolicySampler
    judge: Judge | None
    users: Users | None

    @property
    def server(self) -> Backend:
        """The backend of a command that needs one."""
        assert self.backend is not None
        return self.backend

    def workspace(
        self, prepared: Prepared[Any], new: Callable[[], RunDirectory], keep: Keep | None = None
    ) -> Workspace:
        """Open the run's folder, or create it by `new` and lock it; and open its journals.

        `keep`: None = as the settings say. Raises UserError: no folder, or its saved states are of another policy.
        """
        plan, config, stop = prepared.plan, self.config, self.stop
        run = plan.earlier
        if run is None:
            run = new()
            self.stack.enter_context(held(run))
        self.display.keep_log(run, plan.total_steps)
        self.display.say(f"{'run directory' if plan.earlier is None else 'continues'} {run.path}")
        stop.resume_hint = f"finished work is saved, resume with: {run.resume}"
        budget = Budget(config, plan.pricing)
        ledger = Ledger(run.ledger, budget.count, config.context_limit)
        budget.on_cap(stop.request_soon)
        self.display.spent = budget.brief
        stop.limit_spending(budget.over)
        checkpoints = CheckpointLog(run.checkpoints, keep or Keep(config.keep_checkpoints, BEST))
        if (latest := checkpoints.latest()) is not None:
            check_identity(latest, prepared.trained, f"resume={run.path}", "start a new run")
        return Workspace(run=run, is_new=plan.earlier is None, ledger=ledger, budget=budget, checkpoints=checkpoints)

    def configs(
        self, work: Workspace, before: Callable[[Sequence[SettingChange]], None] = lambda _: None
    ) -> list[tuple[int, C]]:
        """Get (First step, settings) in order of time; records and prints what this process changes. Raises UserError.

        `before`: called with the changes before they are recorded; after a kill in between, the next process calls it
        again.
        """
        history, trained = ConfigHistory(work.run, type(self.config)), work.ledger.steps_trained
        changes = history.changes(self.config)
        before(changes)
        history.record(changes, trained)
        for change in changes:
            self.display.say(note(change, trained))
        return history.configs()

    def record(self, work: Workspace, trained: PolicyIdentity, more: Mapping[str, Any]) -> dict[str, Any]:
        """Write effective.json: what the run really trains with, and `more`. Returns it for wandb. Raises UserError."""
        contract = self.server.contract
        server = {"url": self.server.url, "kind": self.server.kind.name, "contract": contract.source}
        server |= {"sampler": contract.sampler} if contract.sampler else {}
        server["base_weights"] = check_base(work.run, f"resume={work.run.path}", self.server.about)
        adapter = {"layers": "attention and MLP", "rank": trained.lora_rank, "alpha": "the server's, 32"}
        effective = {"server": server, "policy": asdict(trained), "adapter": adapter, **asdict(self.terms), **more}
        write_json(work.run.effective, effective)
        return effective

    async def adapter(self, work: Workspace, start: SavedState | None) -> PolicyTrainer:
        """Create or restore the run's adapter, which is unloaded at the end. Raises UserError, BackendError."""
        if start is not None and start.run is not None:
            check_base(RunDirectory(Path(start.run)), start.given, self.server.about)
        policy = await create_or_restore(self.server, self.config, work.checkpoints, self.display, start)
        self.stack.push_async_callback(policy.close)
        return policy

    def rollouts(
        self: "Wiring[Config]", run: RunDirectory, ledger: Ledger, past: Sequence[Trajectory] = ()
    ) -> Rollouts:
        """Make what runs the trials. `past`: an earlier process's last faults in a row."""
        return Rollouts(
            self.config, self.sampler, self.template, run_ids(run).run_id, ledger, self.stop, faults=past,
            observer=self.display.watcher, venues=self.outside.venues, judge=self.judge, users=self.users,
            retries=self.outside.retries,
        )  # fmt: skip

    async def parts(
        self, work: Workspace, policy: PolicyTrainer, trained: PolicyIdentity, effective: Mapping[str, Any]
    ) -> tuple[LoopParts, int]:
        """Open the metrics, with wandb if the settings name a project. Returns the loop's parts and its first step."""
        run, config = work.run, self.config
        await delete_orphans(policy, work.checkpoints)
        project = wandb_project(config) if isinstance(config, Config) else config.wandb_project
        record = to_json(config) | {"effective": effective}
        wandb = self.outside.start_wandb(run, project, config.wandb_name, record, self.display.say)
        step = latest.step if (latest := work.checkpoints.latest()) else 0
        if not work.is_new:
            work.ledger.resumed(step)
        parts = LoopParts(
            run=run, policy=policy, trained=trained, sampler=self.sampler, metrics=MetricsLog(run, wandb),
            checkpoints=work.checkpoints, ledger=work.ledger, budget=work.budget, display=self.display, stop=self.stop,
        )  # fmt: skip
        return parts, step


@contextlib.asynccontextmanager
async def wired[C: RunSettings](
    config: C, template: ChatTemplate, agree: Agree[C] | None, outside: Outside, display: Display, stop: Stop
) -> AsyncIterator[Wiring[C]]:
    """Connect to the server and to the models beside the policy, each checked by a request. Raises UserError.

    `agree`: None = the command needs no server. All that is opened is closed at the end of the block.
    """
    async with contextlib.AsyncExitStack() as stack:
        backend, terms, sampler, judge, users = None, NO_TERMS, PolicySampler(), None, None
        if agree is not None:
            backend = await stack.enter_async_context(outside.connected(config, display))
            terms = agree(config, backend.kind, backend.contract, backend.max_context)
            sampler = PolicySampler(powers_of_two=backend.kind.answers_of_powers, silences=backend.silences)
        if isinstance(config, Config):
            judge = open_judge(
                config, Transcriber(template).conversation, template.broken_special, outside.open_endpoint
            )
            if judge is not None:
                await stack.enter_async_context(contextlib.aclosing(judge))
                await judge.check()
            opened = opened_users(config, backend, sampler, template, outside.open_endpoint)
            users = await stack.enter_async_context(opened)
        yield Wiring(
            config=config, template=template, outside=outside, display=display, stop=stop, stack=stack, backend=backend,
            terms=terms, sampler=sampler, judge=judge, users=users,
        )  # fmt: skip


async def run_loop[C: RunSettings, P: Prepared[Any], L: Loop[Any]](
    config: C,
    stop: Stop | None,
    outside: Outside | None,
    prepare: Callable[[C, Outside], Awaitable[P]],
    agree: Agree[C],
    build: Callable[[P, Wiring[C]], Awaitable[L]],
    *,
    trials: bool,
    longer: str,
    loop: Callable[[L, Outside], Awaitable[int]] = Loop.finish,
) -> int:
    """Prepare, wire, and run the loop that `build` makes, to its end or until `stop` is asked. Exit status.

    `trials`: whether the run has some; `longer`: the settings that continue a finished run; `loop`: what runs it.
    """
    stop, outside, display = stop or Stop(), outside or Outside(), Display()
    display.follow(stop, trials=trials)
    stop.limit(config, display.say)
    with display, contextlib.ExitStack() as holding:
        if config.resume is not None:
            holding.enter_context(held(open_run_directory(config.resume)))
        display.doing("reading tasks" if trials else "reading conversations")
        prepared = await prepare(config, outside)
        for line in prepared.notes:
            display.say(line)
        if prepared.plan.finished:
            display.say(f"{config.resume} is complete; to continue, give a higher {longer}")
            return 0
        async with wired(config, prepared.template, agree, outside, display, stop) as wiring:
            return await loop(await build(prepared, wiring), outside)
