"""A training run in three phases: prepare (local checks), wire (server, journals, trials), train (the loop)."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from harbortrainer.backend.policy import SavedState, free_slots
from harbortrainer.backend.terms import agree
from harbortrainer.config import Config
from harbortrainer.durable.facts import unchanging
from harbortrainer.durable.files import read_json
from harbortrainer.model_file import model_of, with_texts
from harbortrainer.other_models.judge import read_taxonomy
from harbortrainer.plugins import Brought, check_same
from harbortrainer.rollout.venue import checked_venues
from harbortrainer.run.config_changes import SettingChange
from harbortrainer.run.conversations import Conversations
from harbortrainer.stopping import Stop
from harbortrainer.tasks.split import users_note
from harbortrainer.text import counted
from harbortrainer.training.brought import KEY, brought
from harbortrainer.training.outside import Outside
from harbortrainer.training.plan import RunPlan, make_plan, sampler_change, set_aside, start_directory
from harbortrainer.training.references import open_references
from harbortrainer.training.schedule import SettingsByStep
from harbortrainer.training.start import check_unseen, described, find_start, find_teachers, identity, recorded
from harbortrainer.training.trainer import Terminus2Trainer, Trials
from harbortrainer.training.wiring import Prepared, Wiring, run_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraining(Prepared[RunPlan]):
    """All that is known about a training run before it connects to a server."""

    teachers: dict[str, SavedState]  # by kl_reference
    brought: dict[str, Brought]  # from outside of this package, by setting


async def run_training(
    config: Config,
    stop: Stop | None = None,
    outside: Outside | None = None,
    loop: Callable[[Terminus2Trainer, Outside], Awaitable[int]] = Terminus2Trainer.finish,
) -> int:
    """Prepare, wire and train, to the end or until `stop` is asked. Exit status: 0 done, else that of `stop`.

    `outside`, `loop`: a test's replacements of the world outside and of what runs the loop.
    Raises UserError for what the user can fix; the run directory can then be resumed.
    """
    return await run_loop(
        with_texts(config), stop, outside, prepare, agree, wire, trials=True, longer="n_epochs or max_steps", loop=loop
    )


async def prepare(config: Config, outside: Outside) -> PreparedTraining:
    """Check all that needs no server: tasks, split, venues, chat template, taxonomy, init_from. Raises UserError."""
    with unchanging():
        plan = make_plan(config)
    if (judge := model_of("judge", config.judge)) is not None and judge.taxonomy is not None:
        read_taxonomy(judge.taxonomy)
    found = brought(config, plan.tasks)
    if plan.earlier is not None and plan.earlier.effective.exists():
        check_same(found, read_json(plan.earlier.effective).get(KEY, {}))
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    notes = list[str]()
    if not plan.finished:
        with unchanging():
            notes = await asyncio.to_thread(checked_venues, plan.tasks, config, template, outside.venues)
        notes += filter(None, [users_note(plan.train, plan.held_out)])
    trained = identity(config, template)
    start = find_start(config.init_from, trained, config.backend, plan.earlier)
    teachers = find_teachers(config, trained, plan.earlier)
    if plan.earlier is None:
        if start is not None:
            check_unseen(start, plan.held_out, config.allow_family_overlap)
            notes += [described(start)]
        notes += [f"compares with {state.described}" for state in teachers.values()]
    return PreparedTraining(
        plan=plan, template=template, trained=trained, start=start, notes=notes, teachers=teachers,
        brought=found,
    )  # fmt: skip


async def wire(prepared: PreparedTraining, wiring: Wiring[Config]) -> Terminus2Trainer:
    """Open the run directory, agree on what is trained, create or restore the adapter, and prepare the venues.

    Raises UserError; a new run that is refused leaves no folder.
    """
    plan, config, display, backend = prepared.plan, wiring.config, wiring.display, wiring.server
    work = wiring.workspace(prepared, functools.partial(start_directory, plan, backend.contract.sampler))
    again = f"resume with: {work.run.resume} (it removes leftover containers)"
    wiring.stop.resume_hint = f"finished trials are saved, {again}"
    wiring.stop.limit_trials(config.max_trials, work.ledger.counts["started"])

    def aside(changes: Sequence[SettingChange]) -> None:
        for line in set_aside(work.run, changes, work.ledger):
            display.say(line)

    schedule = SettingsByStep(plan.train, wiring.configs(work, aside))
    changed = sampler_change(work.run.effective, backend.contract.sampler)
    sources = {KEY: {name: one.source for name, one in prepared.brought.items()}}
    effective = wiring.record(work, prepared.trained, recorded(prepared.start, prepared.teachers) | sources)
    for line in (*plan.length_note, *wiring.terms.notes, *changed, _length(plan, backend.url)):
        display.say(line)
    rollouts = wiring.rollouts(work.run, work.ledger, work.ledger.faults_in_a_row)
    with work.undone_if_refused(display):
        await free_slots(backend, work.checkpoints.models())  # of killed processes
        references = await open_references(
            backend, work.checkpoints, schedule.configs, prepared.start, prepared.teachers
        )
        policy = await wiring.adapter(work, prepared.start)
    await wiring.stack.enter_async_context(rollouts.opened(plan.tasks, display.say))
    parts, step = await wiring.parts(work, policy, prepared.trained, effective)
    trials = Trials(rollouts=rollouts, conversations=Conversations(work.run, prepared.template), references=references)
    return Terminus2Trainer(config, parts, trials, schedule, plan.held_out, step)


def _length(plan: RunPlan, url: str) -> str:
    config = plan.config
    return (
        f"{counted(len(plan.train), 'training tasks')}, {len(plan.held_out)} held out; "
        f"{counted(plan.total_steps, 'batches')} of {counted(config.batch_size, 'tasks')} x {config.group_size} "
        f"trials; {config.backend} at {url}"
    )
