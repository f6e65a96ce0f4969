"""One run from checked configuration to closed clients: everything is wired here and released here."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

from src.backend.connect import Backend, connect
from src.backend.policy import PolicyTrainer
from src.backend.terms import Terms, agree
from src.chat_template import ChatTemplate
from src.command_line import to_json
from src.config import Config
from src.errors import UserError
from src.recovery import adopt
from src.rollout.docker.cleaning import tidy
from src.rollout.docker.disk_guard import guarding_disk
from src.rollout.docker.images import prepare_images
from src.rollout.docker.preflight import check_docker
from src.rollout.docker.reaper import reap
from src.rollout.environment import check_tasks
from src.rollout.gates import n_containers
from src.rollout.order import TaskOrder
from src.rollout.rollouts import Rollouts
from src.rollout.task import Task, load_tasks
from src.run.checkpoints import Checkpoint, CheckpointLog, Keep, Policy, require_checkpoint
from src.run.curve import draw_reward_curve
from src.run.directory import RunDirectory, new_run_directory, open_run_directory, write_json
from src.run.display import Display
from src.run.ledger import Ledger
from src.run.metrics_log import MetricsLog, cut_metrics, start_wandb
from src.tasks.split import save_split, split_tasks
from src.terminus2_trainer import Parts, Terminus2Trainer
from src.tinker_llm import PolicySampler
from src.update import Updater

log = logging.getLogger("harbortrainer")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do, known before anything is spent."""

    train: list[Task]
    held_out: list[Task]
    order: TaskOrder
    run: RunDirectory
    policy: Policy
    checkpoint: Checkpoint | None  # where a resumed run goes on


async def train(config: Config) -> int:
    """Run to the end. Raises UserError for what the user can mend; the run directory can then be resumed."""
    display = Display()
    tasks = load_tasks(config.tasks_dir, config.allow_broken_tasks)
    train_tasks, held_out = split_tasks(
        tasks, config.eval_split, config.eval_tasks, config.seed, config.allow_family_overlap
    )
    paths = [task.path for task in (*train_tasks, *held_out)]
    check_tasks(paths, config.environment_type, config.environment_kwargs)
    if config.environment_type == "docker":
        for note in await asyncio.to_thread(check_docker, paths, n_containers(config), config.environment_kwargs):
            display.say(note)
    template = ChatTemplate.load(config.model_name, config.enable_thinking)
    async with _connected(config, display) as backend:
        return await _train(config, backend, template, train_tasks, held_out, display)


async def _train(
    config: Config,
    backend: Backend,
    template: ChatTemplate,
    train_tasks: list[Task],
    held_out: list[Task],
    display: Display,
) -> int:
    terms = agree(config, backend.kind, backend.contract, backend.max_context)
    plan = _plan(config, template, train_tasks, held_out)
    effective = _effective(backend, plan, terms)
    write_json(plan.run.effective, effective)
    display.say(f"run directory {plan.run.path}")
    for note in terms.notes:
        display.say(note)
    display.say(
        f"{len(plan.train)} training tasks, {len(plan.held_out)} held out; {plan.order.total_steps} batches of "
        f"{config.batch_size} tasks x {config.group_size} trials; {config.backend} at {backend.url}"
    )
    sampler = PolicySampler(request_timeout_sec=config.sample_timeout_sec)
    ledger = Ledger(plan.run.ledger)
    if plan.checkpoint is not None:
        ledger.resumed(plan.checkpoint.step)
    rollouts = Rollouts(config, sampler, template, plan.run.name, ledger, ledger.quarantined)
    local = config.environment_type == "docker"
    docker_tasks = [*train_tasks, *held_out] if local else []
    containers = _containers(plan.run.name, display) if local else contextlib.nullcontext()
    async with _policy(config, backend, plan) as policy, containers, contextlib.aclosing(rollouts):
        await asyncio.gather(rollouts.warm_up(), _build_images(docker_tasks, config, plan.run.name, display))
        return await _run(config, plan, policy, sampler, rollouts, ledger, effective, display)


def _plan(config: Config, template: ChatTemplate, train_tasks: list[Task], held_out: list[Task]) -> Plan:
    order = TaskOrder(
        train_tasks,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        max_steps=config.max_steps,
        seed=config.seed,
    )
    renderer = template.renderer
    policy = Policy(config.model_name, config.lora_rank, renderer.name, renderer.thinking)
    if config.resume is None:
        label = config.wandb_name or Path(config.model_name).name
        run = new_run_directory(config.logs_dir, config.run_name, label)
        write_json(run.config, to_json(config) | {"run_name": run.name})
        write_json(run.path / "versions.json", _versions())
        save_split(run.path, train_tasks, held_out, config.allow_family_overlap, resumed=False)
        return Plan(train_tasks, held_out, order, run, policy, None)
    run = open_run_directory(config.resume)
    save_split(run.path, train_tasks, held_out, config.allow_family_overlap, resumed=True)
    checkpoint = require_checkpoint(CheckpointLog(run.checkpoints, 0), policy, config.resume)
    cut_metrics(run.metrics, checkpoint.step)
    return Plan(train_tasks, held_out, order, run, policy, checkpoint)


async def _run(
    config: Config,
    plan: Plan,
    policy: PolicyTrainer,
    sampler: PolicySampler,
    rollouts: Rollouts,
    ledger: Ledger,
    effective: dict[str, Any],
    display: Display,
) -> int:
    record = to_json(config) | {"effective": effective}
    wandb_run = start_wandb(plan.run, config.wandb_project, config.wandb_name, record)
    metrics = MetricsLog(plan.run, wandb_run)
    updater = Updater(config, policy, plan.order.total_steps)
    keep = Keep(config.keep_checkpoints, config.keep_every, config.keep_best)
    checkpoints = CheckpointLog(plan.run.checkpoints, keep)
    await adopt(policy, checkpoints)
    parts = Parts(policy, plan.policy, sampler, rollouts, updater, metrics, checkpoints, ledger, display)
    start_step = plan.checkpoint.step if plan.checkpoint else 0
    trainer = Terminus2Trainer(config, plan.run, parts, plan.order, plan.held_out, start_step)
    done = False
    try:
        await trainer.run()
        done = True
    finally:
        metrics.close(0 if done else 1)
        picture = plan.run.path / "reward_curve.png"
        draw_reward_curve(plan.run.metrics, picture, f"{plan.run.name}: {Path(config.model_name).name}")
        display.say(ledger.summary())
        if not done:
            display.say(f"stopped after step {trainer.step}; continue with: python -m src.train resume={plan.run.path}")
    display.say(f"done; metrics.jsonl and reward_curve.png are in {plan.run.path}")
    return 0


@contextlib.asynccontextmanager
async def _connected(config: Config, display: Display) -> AsyncIterator[Backend]:
    backend, done = await connect(config, display.say), False
    try:
        yield backend
        done = True
    finally:
        await backend.close(done=done)


@contextlib.asynccontextmanager
async def _policy(config: Config, backend: Backend, plan: Plan) -> AsyncIterator[PolicyTrainer]:
    """The adapter on the server, freed at the end whatever happened. A new run that is refused leaves no folder."""
    if plan.checkpoint is None:
        try:
            policy = await PolicyTrainer.create(backend, config)
        except UserError:
            shutil.rmtree(plan.run.path)
            raise
    else:
        policy = await PolicyTrainer.restore(backend, config, plan.checkpoint.path)
    try:
        yield policy
    finally:
        await policy.close()


@contextlib.asynccontextmanager
async def _containers(run_id: str, display: Display) -> AsyncIterator[None]:
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


async def _build_images(tasks: Sequence[Task], config: Config, run_id: str, display: Display) -> None:
    if not tasks:
        return
    started = time.monotonic()
    built = await prepare_images([task.path for task in tasks], config.n_parallel_builds, run_id=run_id)
    if built:
        display.say(f"{built} task images built in {time.monotonic() - started:.1f} s")


def _effective(backend: Backend, plan: Plan, terms: Terms) -> dict[str, Any]:
    """What the run really trains with, for its folder and for wandb."""
    server = {"url": backend.url, "kind": backend.kind.name, "contract": backend.contract.source}
    adapter = {"layers": "attention and MLP", "rank": plan.policy.lora_rank, "alpha": "the server's, 32"}
    return {"server": server, "policy": asdict(plan.policy), "adapter": adapter} | asdict(terms)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("tinker", "harbor", "chz", "transformers", "numpy", "wandb", "docker")}
