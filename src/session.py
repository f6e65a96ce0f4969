"""One run from checked configuration to closed clients: everything is wired here and released here."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from src.backend.connect import Backend, connect
from src.backend.disk_note import disk_note
from src.backend.policy import PolicyTrainer
from src.backend.terms import Terms, agree
from src.budget.budget import Budget
from src.budget.dry_run import dry_run
from src.chat_template import ChatTemplate
from src.config import Config
from src.config_changes import to_json
from src.display.display import Display
from src.errors import UserError
from src.evaluation.conversations import Conversations
from src.plan import Plan, make_plan, start_directory, take_course
from src.recovery import adopt, begin
from src.report.write import leave_report
from src.rollout.docker.cleaning import tidy
from src.rollout.docker.disk_guard import guarding_disk
from src.rollout.docker.images import prepare_images
from src.rollout.docker.preflight import check_docker
from src.rollout.docker.reaper import reap
from src.rollout.environment import check_tasks
from src.rollout.gates import n_containers
from src.rollout.rollouts import Rollouts
from src.rollout.task import Task
from src.run.checkpoints import CheckpointLog, Keep, Policy, require_checkpoint
from src.run.curve import draw_reward_curve
from src.run.directory import RunDirectory, held, open_run_directory, write_json
from src.run.ledger import Ledger
from src.run.metrics_log import MetricsLog
from src.sinks.wandb_log import start_wandb
from src.stop import Stop, Stopped
from src.terminus2_trainer import Parts, Terminus2Trainer
from src.tinker_llm import PolicySampler

log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the run is kept and what it is told."""

    run: RunDirectory
    ledger: Ledger
    budget: Budget
    checkpoints: CheckpointLog
    display: Display
    stop: Stop


async def train(config: Config, stop: Stop | None = None) -> int:
    """Run to the end, or until `stop` is asked. Exit status: 0 done, else what `stop` says.

    Raises UserError for what the user can mend; the run directory can then be resumed.
    """
    stop, display = stop or Stop(), Display(mode=config.display)
    display.follow(stop, waits=config.on_stop == "wait")
    stop.limit(config, display.say)
    with contextlib.ExitStack() as holding:
        if not config.plan:  # which is printed as it is
            holding.enter_context(display)
        if config.resume is not None and not config.plan:
            holding.enter_context(held(open_run_directory(config.resume)))
        plan = make_plan(config)
        if plan.finished:
            display.announce(f"{config.resume} is complete; to go on, give a higher n_epochs or max_steps")
            return 0
        paths = [task.path for task in plan.tasks]
        check_tasks(paths, config.environment_type, config.environment_kwargs)
        if config.environment_type == "docker":
            for note in await asyncio.to_thread(check_docker, paths, n_containers(config), config.environment_kwargs):
                display.say(note)
        template = ChatTemplate.load(config.model_name, config.enable_thinking)
        if config.plan:
            return await dry_run(plan)
        async with connected(config, display) as backend:
            terms = agree(config, backend.kind, backend.contract, backend.max_context)
            place = _take_place(plan, holding, display, stop)
            return await _train(plan, place, backend, terms, template)


def _take_place(plan: Plan, holding: contextlib.ExitStack, display: Display, stop: Stop) -> Place:
    """The folder of the run, held from now on, and its journals."""
    config = plan.config
    run = plan.earlier
    if run is None:
        run = start_directory(plan)
        holding.enter_context(held(run))
    display.keep_log(run, plan.total_steps)
    display.announce(f"{'run directory' if plan.earlier is None else 'continues'} {run.path}")
    stop.then = f"finished trials are on disk, go on with: {run.resume} (it removes containers that are left)"
    budget = Budget(config, plan.tariff)
    ledger = Ledger(run.ledger, budget.count)
    budget.watched_by(stop.request_soon)
    display.spent = budget.brief
    stop.limit_spending(budget.over)
    stop.limit_trials(config.max_trials, ledger.counts["started"])
    keep = Keep(config.keep_checkpoints, config.keep_best)
    return Place(run, ledger, budget, CheckpointLog(run.checkpoints, keep), display, stop)


async def _train(plan: Plan, place: Place, backend: Backend, terms: Terms, template: ChatTemplate) -> int:
    config, run, ledger, say = plan.config, place.run, place.ledger, place.display.say
    trained = Policy(config.model_name, config.lora_rank, template.renderer.name, template.renderer.thinking)
    if place.checkpoints.latest() is not None:
        require_checkpoint(place.checkpoints, trained, str(run.path))
    course = take_course(plan, run, ledger, place.display)
    effective = _effective(backend, trained, terms)
    write_json(run.effective, effective)
    for note in (*terms.notes, disk_note(config, plan.total_steps, backend.about)):
        say(note)
    say(
        f"{len(plan.train)} training tasks, {len(plan.held_out)} held out; {plan.total_steps} batches of "
        f"{config.batch_size} tasks x {config.group_size} trials; {config.backend} at {backend.url}"
    )
    sampler = PolicySampler(request_timeout_sec=config.sample_timeout_sec)
    past = (ledger.quarantined, place.stop, ledger.faults_in_a_row)
    rollouts = Rollouts(config, sampler, template, run.name, ledger, *past, place.display.watcher)
    local = config.environment_type == "docker"
    docker_tasks = plan.tasks if local else []
    containers = run_containers(run.name, place.display) if local else contextlib.nullcontext()
    async with _policy(plan, place, backend) as policy, containers, contextlib.aclosing(rollouts):
        await asyncio.gather(rollouts.warm_up(), build_images(docker_tasks, run.name, place.display))
        await adopt(policy, place.checkpoints)
        record = to_json(config) | {"effective": effective}
        metrics = MetricsLog(run, start_wandb(run, config.wandb_project, config.wandb_name, record, say))
        parts = Parts(
            policy, trained, sampler, rollouts, metrics, place.checkpoints, ledger, place.display, place.stop,
            Conversations(run, template), place.budget,
        )  # fmt: skip
        latest = place.checkpoints.latest()
        if plan.earlier is not None:
            ledger.resumed(latest.step if latest else 0)
        return await _run(
            place, Terminus2Trainer(config, run, parts, course, plan.held_out, latest.step if latest else 0)
        )


async def _run(place: Place, trainer: Terminus2Trainer) -> int:
    """Exit status."""
    run, say = place.run, place.display.announce
    status = 1
    try:
        await trainer.run()
        status = 0
    except Stopped:
        status = place.stop.status
    finally:
        trainer.parts.metrics.close(1 if status == 1 else 0)
        title = f"{run.name}: {Path(trainer.config.model_name).name}"
        draw_reward_curve(run.metrics, run.path / "reward_curve.png", title)
        say(leave_report(run.path))
        say(place.ledger.summary())
        say(place.budget.summary())
        if status:
            why = f" ({place.stop.why})" if place.stop.asked else ""
            say(f"stopped after step {trainer.step}{why}; continue with: {run.resume}")
    if not status:
        say(f"done; metrics.jsonl and reward_curve.png are in {run.path}")
    return status


@contextlib.asynccontextmanager
async def connected(config: Config, display: Display) -> AsyncIterator[Backend]:
    display.doing(f"connecting to the {config.backend} server")
    backend, done = await connect(config, display.say), False
    try:
        yield backend
        done = True
    finally:
        await backend.close(done=done)


@contextlib.asynccontextmanager
async def _policy(plan: Plan, place: Place, backend: Backend) -> AsyncIterator[PolicyTrainer]:
    """The adapter on the server, freed at the end whatever happened. A new run that is refused leaves no folder."""
    try:
        policy = await begin(backend, plan.config, place.checkpoints, place.display)
    except UserError:
        if plan.earlier is None:
            shutil.rmtree(place.run.path)
        raise
    try:
        yield policy
    finally:
        await policy.close()


@contextlib.asynccontextmanager
async def run_containers(run_id: str, display: Display) -> AsyncIterator[None]:
    """Nothing of dead runs is left before, no container of ours after; the disk is watched meanwhile."""
    for line in await asyncio.to_thread(tidy):
        display.say(line)
    try:
        with guarding_disk(run_id):
            yield
    finally:
        try:
            await asyncio.to_thread(reap, run_id)
        except (DockerException, requests.RequestException):
            display.say("Docker does not answer, containers of this run may be left; the next run removes them")


async def build_images(tasks: Sequence[Task], run_id: str, display: Display) -> None:
    if not tasks:
        return
    started = time.monotonic()
    paths, progress = [task.path for task in tasks], display.building
    built = await prepare_images(paths, progress=progress, run_id=run_id)
    if built:
        display.say(f"{built} task images built in {time.monotonic() - started:.1f} s")


def _effective(backend: Backend, trained: Policy, terms: Terms) -> dict[str, Any]:
    """What the run really trains with, for its folder and for wandb."""
    server = {"url": backend.url, "kind": backend.kind.name, "contract": backend.contract.source}
    adapter = {"layers": "attention and MLP", "rank": trained.lora_rank, "alpha": "the server's, 32"}
    return {"server": server, "policy": asdict(trained), "adapter": adapter} | asdict(terms)
