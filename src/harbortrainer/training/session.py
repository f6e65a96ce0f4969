"""A training run in three phases: prepare (local checks), wire (server, journals, trials), train (the loop)."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.policy import SavedState, free_slots
from harbortrainer.backend.terms import Terms, agree
from harbortrainer.backend.users import opened_users
from harbortrainer.config import Config
from harbortrainer.durable.facts import unchanging
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.model_file import model_of, with_texts
from harbortrainer.other_models.judge import Judge, open_judge, read_taxonomy
from harbortrainer.other_models.users import Users
from harbortrainer.plugins import Brought, check_same
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.sampler import PolicySampler
from harbortrainer.rollout.concurrency import level_of
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import agents_at_once, check_venues, venues_of
from harbortrainer.run.checkpoints import PolicyIdentity
from harbortrainer.run.config_changes import to_json
from harbortrainer.run.conversations import Conversations, Transcriber
from harbortrainer.run.directory import RunDirectory, held, open_run_directory
from harbortrainer.run.metrics import MetricsLog
from harbortrainer.stopping import Stop
from harbortrainer.tasks.split import users_note
from harbortrainer.text import counted
from harbortrainer.training.brought import KEY, brought
from harbortrainer.training.outage import create_or_restore, delete_orphans
from harbortrainer.training.outside import Outside
from harbortrainer.training.plan import RunPlan, disk_note, make_plan, open_schedule, sampler_change, start_directory
from harbortrainer.training.references import open_references
from harbortrainer.training.start import check_unseen, described, find_start, find_teachers, recorded
from harbortrainer.training.trainer import Parts, Terminus2Trainer
from harbortrainer.training.workspace import Workspace, open_workspace, undone_if_refused
from harbortrainer.watch.display import Display
from harbortrainer.watch.wandb_log import wandb_project


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is known about a run before it connects to a server. `notes`: lines for the user."""

    plan: RunPlan
    template: ChatTemplate
    trained: PolicyIdentity
    start: SavedState | None  # what the weights start from, None = the seed
    teachers: dict[str, SavedState]  # by kl_reference
    notes: list[str]
    most_agents: int  # at once
    brought: dict[str, Brought]  # from outside of this package, by setting


async def run_training(
    config: Config,
    stop: Stop | None = None,
    outside: Outside | None = None,
    loop: "Callable[[Terminus2Trainer, Outside], Awaitable[int]] | None" = None,
) -> int:
    """Prepare, wire and train, to the end or until `stop` is asked. Exit status: 0 done, else that of `stop`.

    `outside`, `loop`: a test's replacements of the world outside and of `train`.
    Raises UserError for what the user can fix; the run directory can then be resumed.
    """
    config, stop, outside = with_texts(config), stop or Stop(), outside or Outside()
    display = Display()
    display.follow(stop, trials=True)
    stop.limit(config, display.say)
    with display, contextlib.ExitStack() as holding:
        if config.resume is not None:
            holding.enter_context(held(open_run_directory(config.resume)))
        prepared = await prepare(config, outside)
        for note in prepared.notes:
            display.say(note)
        if prepared.plan.finished:
            display.say(f"{config.resume} is complete; to continue, give a higher n_epochs or max_steps")
            return 0
        async with wire(prepared, display, stop, outside) as trainer:
            return await (loop or train)(trainer, outside)


async def prepare(config: Config, outside: Outside) -> Prepared:
    """Check all that needs no server: tasks, split, venues, chat template, taxonomy, init_from. Raises UserError."""
    with unchanging():
        plan = make_plan(config)
    if (judge := model_of("judge", config.judge)) is not None and judge.taxonomy is not None:
        read_taxonomy(judge.taxonomy)
    found = brought(config, plan.tasks)
    if plan.earlier is not None and plan.earlier.effective.exists():
        check_same(found, read_json(plan.earlier.effective).get(KEY, {}))
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    notes, most_agents = [], 1
    if not plan.finished:
        venues = venues_of(plan.tasks, outside.venues)
        with unchanging():
            notes, most_agents = await asyncio.to_thread(agents_at_once, venues, plan.tasks, config)
            notes += await asyncio.to_thread(check_venues, venues, plan.tasks, config, template, most_agents)
        notes += filter(None, [users_note(plan.train, plan.held_out)])
    renderer = template.renderer
    trained = PolicyIdentity(config.model_name, config.lora_rank, renderer.name, renderer.thinking)
    start = find_start(config.init_from, trained, config.backend, plan.earlier)
    teachers = find_teachers(config, trained, plan.earlier)
    if start is not None and plan.earlier is None:
        check_unseen(start, plan.held_out, config.allow_family_overlap)
        notes = [*notes, described(start)]
    if plan.earlier is None:
        notes = [*notes, *(f"compares with {state.described}" for state in teachers.values())]
    return Prepared(
        plan, template, trained, start, teachers=teachers, notes=notes, most_agents=most_agents, brought=found
    )


@contextlib.asynccontextmanager
async def wire(prepared: Prepared, display: Display, stop: Stop, outside: Outside) -> AsyncIterator[Terminus2Trainer]:
    """Connect to the server, open the run directory and make the parts; all is released at the end of the block.

    Raises UserError.
    """
    plan = prepared.plan
    config = plan.config
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(outside.connected(config, display))
        terms = agree(config, backend.kind, backend.contract, backend.max_context)
        sampler = PolicySampler(
            powers_of_two=backend.kind.answers_of_powers,
            silences=backend.silences,
        )
        judge, users = await _judge_and_users(prepared, backend, sampler, outside, stack)
        new = functools.partial(start_directory, plan, backend.contract.sampler)
        workspace = open_workspace(
            config, plan.pricing, plan.earlier, new, total_steps=plan.total_steps, trained=prepared.trained,
            stack=stack, display=display, stop=stop,
        )  # fmt: skip
        stop.resume_hint = _resume_hint(workspace.run)
        stop.limit_trials(config.max_trials, workspace.ledger.counts["started"])
        schedule = open_schedule(plan, workspace.run, workspace.ledger, display)
        effective = _record_effective(prepared, workspace, backend, terms)
        rollouts = _rollouts(prepared, workspace, sampler, outside, judge, users)
        with undone_if_refused(workspace):
            await free_slots(backend, workspace.checkpoints.models())  # of killed processes
            references = await open_references(
                backend, workspace.checkpoints, schedule.configs, prepared.start, prepared.teachers
            )
            policy = await create_or_restore(backend, config, workspace.checkpoints, display, prepared.start)
        stack.push_async_callback(policy.close)
        await stack.enter_async_context(rollouts.opened(plan.tasks, display.say))
        await delete_orphans(policy, workspace.checkpoints)
        run, record = workspace.run, to_json(config) | {"effective": effective}
        wandb = outside.start_wandb(run, wandb_project(config), config.wandb_name, record, display.say)
        parts = Parts(
            policy=policy, trained=prepared.trained, sampler=sampler, rollouts=rollouts,
            metrics=MetricsLog(run, wandb), checkpoints=workspace.checkpoints, ledger=workspace.ledger,
            display=display, stop=stop, conversations=Conversations(run, prepared.template),
            budget=workspace.budget, references=references,
        )  # fmt: skip
        start = latest.step if (latest := workspace.checkpoints.latest()) else 0
        if plan.earlier is not None:
            workspace.ledger.resumed(start)
        yield Terminus2Trainer(config, run, parts, schedule, plan.held_out, start)


def _resume_hint(run: RunDirectory) -> str:
    return f"finished trials are saved, resume with: {run.resume} (it removes leftover containers)"


async def train(trainer: Terminus2Trainer, outside: Outside) -> int:
    """Run the loop, then write the pages and summaries. Exit status."""
    done = f"done; metrics.jsonl and reward_curve.png are in {trainer.run_directory.path}"
    return await trainer.finish(outside, done)


def _record_effective(prepared: Prepared, workspace: Workspace, backend: Backend, terms: Terms) -> dict[str, Any]:
    """What the run really trains with: written to its folder, printed, and returned for wandb."""
    plan, trained = prepared.plan, prepared.trained
    config, say = plan.config, workspace.display.say
    server = {"url": backend.url, "kind": backend.kind.name, "contract": backend.contract.source}
    server |= {"sampler": backend.contract.sampler} if backend.contract.sampler else {}
    adapter = {"layers": "attention and MLP", "rank": trained.lora_rank, "alpha": "the server's, 32"}
    effective = {"server": server, "policy": asdict(trained), "adapter": adapter} | asdict(terms)
    effective |= recorded(prepared.start, prepared.teachers) | {
        KEY: {name: one.source for name, one in prepared.brought.items()}
    }
    changed = sampler_change(workspace.run.effective, backend.contract.sampler)
    write_json(workspace.run.effective, effective)
    disk = disk_note(config, plan.total_steps, backend.api.base_model(config.model_name), backend.about)
    for note in (*plan.length_note, *terms.notes, *changed, disk):
        say(note)
    say(
        f"{counted(len(plan.train), 'training tasks')}, {len(plan.held_out)} held out; "
        f"{counted(plan.total_steps, 'batches')} of {counted(config.batch_size, 'tasks')} x {config.group_size} "
        f"trials; {config.backend} at {backend.url}"
    )
    return effective


async def _judge_and_users(
    prepared: Prepared, backend: Backend, sampler: PolicySampler, outside: Outside, stack: contextlib.AsyncExitStack
) -> tuple[Judge | None, Users | None]:
    """Both checked by a request, and closed with the stack. Raises UserError."""
    config, template = prepared.plan.config, prepared.template
    judge = open_judge(config, Transcriber(template).conversation, template.broken_special, outside.open_endpoint)
    if judge is not None:
        await stack.enter_async_context(contextlib.aclosing(judge))
        await judge.check()
    users = opened_users(config, backend, sampler, template, outside.open_endpoint)
    return judge, await stack.enter_async_context(users)


def _rollouts(
    prepared: Prepared,
    workspace: Workspace,
    sampler: PolicySampler,
    outside: Outside,
    judge: Judge | None,
    users: Users | None,
) -> Rollouts:
    return Rollouts(
        prepared.plan.config,
        sampler,
        prepared.template,
        workspace.run_id,
        journal=workspace.ledger,
        stop=workspace.stop,
        faults=workspace.ledger.faults_in_a_row,
        observer=workspace.display.watcher,
        venues=outside.venues,
        level=level_of(prepared.plan.config, prepared.most_agents, workspace.run.metrics),
        judge=judge,
        users=users,
    )
