"""One evaluation from checked arguments to evaluation.json: everything is wired here and released here."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.terms import agree
from harbortrainer.config import Config
from harbortrainer.docker.host import build_images, cleaned
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.errors import ServerLost
from harbortrainer.evaluation import policies, results
from harbortrainer.evaluation.arguments import EvalArgs, trainer_config
from harbortrainer.evaluation.policies import Subject, sampled
from harbortrainer.evaluation.results import EvalTask, load_sets, require_same
from harbortrainer.learning.trajectory import BatchKind, Trajectory, TrajectoryGroup, TrialName, batch_name
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.tinker_llm import PolicySampler
from harbortrainer.rollout.environment import check_tasks
from harbortrainer.rollout.phases import n_containers
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.run.conversations import Conversations
from harbortrainer.run.directory import RunDirectory, held, new_run_directory, run_ids
from harbortrainer.run.ledger import Ledger
from harbortrainer.run.trajectories import read_batch, write_trajectory
from harbortrainer.stats import Comparison, compare
from harbortrainer.stopping import run_until
from harbortrainer.tasks.sources import SOURCES_FILE, Source, sources_record
from harbortrainer.tasks.split import SPLIT_FILE, check_held_out
from harbortrainer.tasks.task import Task
from harbortrainer.training.outside import Outside
from harbortrainer.watch.display import Display

MAX_LOSSES = 3  # of the server in a row without a trial in between: then it is not a restart that loses it
KIND: BatchKind = "eval"


@dataclass(frozen=True, slots=True)
class Runner:
    """What all trials of an evaluation share. `temperature`: 0 = greedy."""

    config: Config
    backend: Backend
    sampler: PolicySampler
    rollouts: Rollouts
    run: RunDirectory
    display: Display
    temperature: float
    retry_ungraded: bool

    async def groups(
        self, number: int, subject: Subject, tasks_P: Sequence[Task], trials: int
    ) -> list[TrajectoryGroup]:
        """`trials` of each task by the policy with this number. Raises BackendError, EnvironmentFault, DiskFault."""
        losses, known = 0, -1
        while True:
            done = self.done(number)
            losses, known = (0, len(done)) if len(done) > known else (losses + 1, known)
            if (
                len({TrialName.parse(name).first for name in done}) == len(tasks_P) * trials
            ):  # nothing is left to sample
                return await self._run(number, subject, tasks_P, trials)
            try:
                async with sampled(subject, self.backend, self.config) as client:
                    self.sampler.publish(client, number)
                    ends = client.forgotten("sampling"), self.backend.silent("sampling")
                    try:
                        return await run_until(self._run(number, subject, tasks_P, trials), *ends)
                    finally:
                        await self.sampler.abandon()
            except ServerLost as error:
                if losses >= MAX_LOSSES:
                    raise
                self.display.say(f"{error}; the trials that are left are run as soon as the server answers")
                await self.backend.until_answering(self.config.outage_limit_sec)
                await self.backend.reopen()

    def done(self, number: int) -> dict[str, Trajectory]:
        """Trials of this policy that are not run again; of several at one place the graded one comes first."""
        stored = read_batch(self.run.trajectories(KIND, number))
        graded = {name: trajectory for name, trajectory in stored.items() if trajectory.reward is not None}
        return graded if self.retry_ungraded else graded | stored

    async def _run(self, number: int, subject: Subject, tasks_P: Sequence[Task], trials: int) -> list[TrajectoryGroup]:
        folder = self.run.trajectories(KIND, number)
        with self.display.trials(subject.name, len(tasks_P) * trials) as show:

            def finished(trajectory: Trajectory) -> None:
                write_trajectory(folder, trajectory)
                show(trajectory)

            return await self.rollouts.run_groups(
                tasks_P,
                trials,
                self.run.batch(KIND, number),
                kind=KIND,
                step=number,
                temperature=self.temperature,
                on_trajectory=finished,
                done=self.done(number),
            )


RESULT = "evaluation.json"
PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """What an evaluation will do, known before anything is spent. `subjects`: the second one is compared with."""

    subjects: list[Subject]
    sources: list[Source]
    tasks: list[EvalTask]
    config: Config


async def evaluate(args: EvalArgs, outside: Outside | None = None) -> int:
    """Exit status: 0 done, 1 done, but a task has no graded trial. Raises UserError for what the user can mend."""
    display, outside = Display(), outside or Outside()
    plan = _plan(args)
    config = plan.config
    paths = [one.task.path for one in plan.tasks]
    check_tasks(paths, config.environment_type, config.environment_kwargs)
    host = outside.host(config)
    for note in await asyncio.to_thread(host.check, paths, n_containers(config), config.environment_kwargs):
        display.say(note)
    template = outside.load_template(config.model_name, config.enable_thinking)
    for subject in plan.subjects:
        policies.check_renderer(subject, template.renderer)
    async with outside.connected(config, display) as backend:
        agree(config, backend.kind, backend.contract, backend.max_context)
        run = _directory(args, plan)
        with held(run):
            return await _evaluate(args, plan, run, backend, template, outside, display)


async def _evaluate(
    args: EvalArgs,
    plan: Plan,
    run: RunDirectory,
    backend: Backend,
    template: ChatTemplate,
    outside: Outside,
    display: Display,
) -> int:
    host = outside.host(plan.config)
    _announce(args, plan, run, backend, display)
    ledger, powers_of_two = Ledger(run.ledger), backend.kind.answers_of_powers
    sampler = PolicySampler(request_timeout_sec=args.sample_timeout_sec, powers_of_two=powers_of_two)
    config, tasks, run_id = plan.config, [one.task for one in plan.tasks], run_ids(run).run_id
    outer = {"observer": display.watcher, "ping": host.ping, "new_trial": outside.new_trial}
    rollouts = Rollouts(config, sampler, template, run_id, ledger, **outer)
    paths = [task.path for task in tasks]
    runner = Runner(config, backend, sampler, rollouts, run, display, args.temperature, args.retry_ungraded)
    found: list[list[results.TaskResult]] = []
    done = False
    with display:
        display.keep_log(run)
        try:
            async with cleaned(host, run_id, display.say), contextlib.aclosing(rollouts):
                images = build_images(host, paths, run_id, display.building, display.say)
                await asyncio.gather(rollouts.warm_up(), images)
                for number, subject in enumerate(plan.subjects):
                    groups_P = await runner.groups(number, subject, tasks, args.trials)
                    found.append(results.task_results(plan.tasks, groups_P))
                    await asyncio.to_thread(
                        _keep_conversations, Conversations(run, template), number, plan.tasks, groups_P
                    )
            done = True
        finally:
            display.say(ledger.summary())
            if not done:
                display.say(f"stopped; continue with: python -m src.evaluate out={run.path}")
    return _give(args, plan, run, found, display)


def _keep_conversations(
    conversations: Conversations, number: int, tasks: list[EvalTask], groups_P: list[TrajectoryGroup]
) -> None:
    """A file for each set."""
    for name in dict.fromkeys(one.set for one in tasks):
        groups = [group for one, group in zip(tasks, groups_P, strict=True) if one.set == name]
        conversations.save(f"{batch_name(KIND, number)}-{name.replace('/', '_')}", groups)


def _plan(args: EvalArgs) -> Plan:
    """Of a new evaluation, or as it was started. Raises UserError."""
    sources, tasks = load_sets(args)
    saved = _saved(args)
    if saved is not None:
        require_same(saved["tasks"], tasks, str(args.out))
        subjects = [policies.from_json(subject) for subject in saved["subjects"]]
    else:
        given = {"checkpoint": args.checkpoint} | ({"against": args.against} if args.against is not None else {})
        subjects = [policies.find_subject(field, value) for field, value in given.items()]
    for subject in subjects:
        _refuse_trained_on(subject, tasks, args.allow_family_overlap)
    return Plan(subjects, sources, tasks, trainer_config(args, policies.common_model(subjects, args.model_name)))


def _saved(args: EvalArgs) -> dict[str, Any] | None:
    file = Path(args.out).expanduser() / PLAN if args.out else None
    return read_json(file) if file is not None and file.is_file() else None


def _refuse_trained_on(subject: Subject, tasks: list[EvalTask], allow_family_overlap: bool) -> None:
    """Nothing is known of the tasks behind a bare tinker:// path, nor of runs of earlier versions."""
    file = Path(subject.run) / SPLIT_FILE if subject.run else None
    if file is not None and file.is_file():
        record = json.loads(file.read_text())
        check_held_out(record, [one.task for one in tasks], subject.name, allow_family_overlap)


def _directory(args: EvalArgs, plan: Plan) -> RunDirectory:
    if _saved(args) is not None:
        return RunDirectory(Path(str(args.out)).expanduser().resolve())
    config = json.loads(json.dumps(chz.asdict(args)))
    tasks = [{"name": one.task.name, "digest": one.task.digest, "set": one.set} for one in plan.tasks]
    files = {
        "config.json": config,
        PLAN: {"subjects": list(map(policies.to_json, plan.subjects)), "tasks": tasks},
        SOURCES_FILE: sources_record(plan.sources, {}),
    }
    if args.out is None:
        return new_run_directory(args.logs_dir, None, f"eval-{Path(plan.config.model_name).name}", files)
    out = Path(args.out).expanduser().resolve()
    if out.is_dir():
        out.rmdir()  # it is empty, or the arguments had been refused
    return new_run_directory(str(out.parent), out.name, "", files)


def _announce(args: EvalArgs, plan: Plan, run: RunDirectory, backend: Backend, display: Display) -> None:
    names = " against ".join(subject.name for subject in plan.subjects)
    planned = len(plan.subjects) * len(plan.tasks) * args.trials
    stored = sum(len(list(run.trajectories("eval", n).glob("*.npz"))) for n in range(len(plan.subjects)))
    display.say(f"results go to {run.path}")
    display.say(
        f"{names}: {len(plan.tasks)} tasks x {args.trials} trials{' x 2 policies' * (len(plan.subjects) - 1)} = "
        f"{planned} trials planned, {stored} of them are there; "
        f"{f'temperature {args.temperature:g}' if args.temperature else 'greedy'}; {args.backend} at {backend.url}"
    )


def _give(
    args: EvalArgs, plan: Plan, run: RunDirectory, found: list[list[results.TaskResult]], display: Display
) -> int:
    comparison: Comparison | None = None
    if len(found) == 2:
        subject, other = ({r.name: r.rewards_G for r in results_P} for results_P in found)
        comparison = compare(other, subject)
    value = results.report_json(args, plan.config.model_name, plan.subjects, found, comparison)
    write_json(run.path / RESULT, value)
    results.show(value)
    display.say(f"done; {RESULT} is in {run.path}")
    return 1 if any(policy["tasks_ungraded"] for policy in value["policies"]) else 0
