"""One evaluation, from checked arguments to evaluation.json: plans it, wires the parts, runs the trials."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import chz

from harbortrainer.backend.connect import Backend
from harbortrainer.backend.terms import agree
from harbortrainer.commands import PLAN_FILE
from harbortrainer.config import Config
from harbortrainer.durable.files import read_json, write_json
from harbortrainer.errors import ServerLost, UserError, refuse
from harbortrainer.evaluation import policies, results
from harbortrainer.evaluation.arguments import EvalArgs, trainer_config
from harbortrainer.evaluation.oracle import load_solutions
from harbortrainer.evaluation.policies import Subject, sampled
from harbortrainer.learning.trajectory import BatchKind, Trajectory, TrajectoryGroup, TrialName, batch_name
from harbortrainer.model_file import model_of
from harbortrainer.other_models.remote_policy import RemotePolicy, Spent, until_spent
from harbortrainer.other_models.users import as_trained, refuse_unused
from harbortrainer.plugins import Brought, check_same
from harbortrainer.policy.chat_template import ChatTemplate
from harbortrainer.policy.solution import Solutions
from harbortrainer.rollout.rollouts import Rollouts
from harbortrainer.rollout.venue import checked_venues
from harbortrainer.run.config_changes import last_values
from harbortrainer.run.conversations import Conversations
from harbortrainer.run.directory import RunDirectory, held, new_run_directory
from harbortrainer.run.earlier_settings import current
from harbortrainer.run.ledger import Ledger, require_ledger
from harbortrainer.run.trajectories import read_batch, write_trajectory
from harbortrainer.stopping import Stop, run_until
from harbortrainer.tasks.close import close_note
from harbortrainer.tasks.sources import SOURCES_FILE, Source, find_sources, load_sources, sources_record, tasks_of
from harbortrainer.tasks.split import SPLIT_FILE, check_held_out
from harbortrainer.tasks.task import Task
from harbortrainer.training.brought import KEY, brought
from harbortrainer.training.outside import Outside
from harbortrainer.training.wiring import Wiring, wired
from harbortrainer.watch.display import Display

RESULT = "evaluation.json"

KIND: BatchKind = "eval"
MAX_LOSSES = 3  # of the server in a row without a finished trial in between


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What an evaluation will do, known before anything is spent. The second of `subjects` is compared with."""

    args: EvalArgs
    subjects: list[Subject]
    sources: list[Source]
    tasks: list[Task]
    config: Config
    continued: bool  # it has a directory already
    brought: dict[str, Brought]  # from outside of this package, by setting
    near: list[str]  # lines on tasks that are close to those of training

    @property
    def needs_server(self) -> bool:
        return any(subject.needs_server for subject in self.subjects)


async def evaluate(args: EvalArgs, outside: Outside | None = None) -> int:
    """Run an evaluation. Exit status: 0 done, 1 a task has no graded trial. Raises UserError."""
    status, _ = await evaluated(args, outside)
    return status


async def evaluated(args: EvalArgs, outside: Outside | None = None) -> tuple[int, Path]:
    """Run an evaluation. Exit status and directory. Raises UserError for what the user can mend."""
    display, outside = Display(), outside or Outside()
    plan = make_plan(args)
    config = plan.config
    template = outside.load_template(config.model_name, config.enable_thinking, config.tool_format)
    notes = await asyncio.to_thread(checked_venues, plan.tasks, config, template, outside.venues)
    for note in (*plan.near, *notes):
        display.say(note)
    for subject in plan.subjects:
        policies.check_renderer(subject, template.renderer)
    solutions = await asyncio.to_thread(_solutions, plan, template, display)
    async with wired(config, template, agree if plan.needs_server else None, outside, display, Stop()) as wiring:
        run = _directory(plan)
        with held(run):
            _announce(plan, run, wiring.backend, display)
            found = await _run(plan, run, solutions, wiring)
    value = results.report_json(args, config.model_name, plan.subjects, found)
    write_json(run.path / RESULT, value)
    results.show(value)
    display.say(f"done; {RESULT} is in {run.path}")
    return int(any(policy["tasks_ungraded"] for policy in value["policies"])), run.path


def _solutions(plan: EvalPlan, template: ChatTemplate, display: Display) -> Solutions:
    """The solutions of all tasks where a policy is the oracle, else none. Raises UserError."""
    if not any(subject.is_oracle for subject in plan.subjects):
        return Solutions({})
    solutions, notes = load_solutions(plan.tasks, plan.config, template)
    for note in notes:
        display.say(note)
    return solutions


def make_plan(args: EvalArgs) -> EvalPlan:
    """Return the plan of a new evaluation, or of the one in `out` as it was started. Raises UserError."""
    sources = find_sources(args.tasks_dir)
    tasks = load_sources(sources, args.tasks_include, args.tasks_exclude)
    file = Path(args.out).expanduser() / PLAN_FILE if args.out else None
    continued, saved = file is not None and file.is_file(), {}
    if file is not None and continued:
        saved = read_json(file, "tasks", "subjects")
        _require_same(saved["tasks"], tasks, str(args.out))
        require_ledger(RunDirectory(file.parent).ledger, "out=")
        subjects = [policies.from_json(subject) for subject in saved["subjects"]]
    else:
        first = {"checkpoint": args.checkpoint} if args.policy is None else {"policy": args.policy}
        given = first | ({"against": args.against} if args.against is not None else {})
        subjects = [policies.find_subject(field, value) for field, value in given.items()]
    refuse(_caps(args, subjects))
    near: list[str] = []
    for subject in subjects:
        policies.refuse_elsewhere(subject, args.backend)
        near += _refuse_trained_on(subject, tasks, args.allow_family_overlap)
    config = trainer_config(args, policies.common_model(subjects, args.model_name))
    refuse_unused(config, tasks)
    if runs := [Path(subject.run) for subject in subjects if subject.run]:
        config = _with_user(
            as_trained(config, current(last_values(RunDirectory(runs[0])), ("user",)), tasks), saved.get("user")
        )
    found = brought(config, tasks)
    check_same(found, saved.get(KEY, {}))
    return EvalPlan(args, subjects, sources, tasks, config=config, continued=continued, brought=found, near=near)


def _caps(args: EvalArgs, subjects: Sequence[Subject]) -> Iterator[str]:
    """Lines for caps that would cap nothing."""
    about = [subject.endpoint for subject in subjects if subject.endpoint is not None]
    if args.max_usd and not about:
        yield f"max_usd={args.max_usd:g}: caps requests to the endpoint of policy=FILE; leave it out"
    elif args.max_usd and not all(one.get("usd_per_million") for one in about):
        yield f"max_usd={args.max_usd:g}: no price known; give usd_per_million in the file of the policy"


def _with_user(config: Config, before: Mapping[str, Any] | None) -> Config:
    """The user with which the evaluation began, where its run has another one since; its address may have moved."""
    if before is None:
        return config
    first = current(before, ("user",)).get("user")
    was, now = model_of("user", first), model_of("user", config.user)
    same = was == now or (was and now and (was.model, was.fields) == (now.model, now.fields))
    return config if same else chz.replace(config, user=first)


def _require_same(saved: Sequence[dict[str, Any]], tasks: Sequence[Task], out: str) -> None:
    """A continued evaluation has the tasks that it was started with. Raises UserError."""
    before = {task["name"]: task["digest"] for task in saved}
    now = {task.name: task.digest for task in tasks}
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed or list(before) != list(now):
        raise UserError(
            f"tasks_dir: {', '.join(changed[:3]) or 'the order of tasks'} changed since out={out} was started; put the "
            "tasks back or choose another out"
        )


def _refuse_trained_on(subject: Subject, tasks: list[Task], allow_family_overlap: bool) -> list[str]:
    """Lines on tasks that are close to those of its run. Raises UserError for tasks that it was trained on.

    The tasks behind a bare tinker:// path, or in runs of earlier versions, are not known.
    """
    file = Path(subject.run) / SPLIT_FILE if subject.run else None
    if file is None or not file.is_file():
        return []
    record = read_json(file, "train")
    check_held_out(record, tasks, subject.name, allow_family_overlap)
    known = {one["digest"] for one in record["train"].values()}
    return [f"{subject.name}: {line}" for line in close_note(tasks_of(file.with_name(SOURCES_FILE), known), tasks)]


def _directory(plan: EvalPlan) -> RunDirectory:
    args = plan.args
    out = Path(args.out).expanduser().resolve() if args.out is not None else None
    if out is not None and plan.continued:
        return RunDirectory(out)
    tasks = [{"name": task.name, "digest": task.digest, "set": task.source} for task in plan.tasks]
    files = {
        "config.json": json.loads(json.dumps(chz.asdict(args))),
        PLAN_FILE: {
            "subjects": list(map(asdict, plan.subjects)),
            "tasks": tasks,
            "user": {"user": plan.config.user},
            KEY: {name: one.source for name, one in plan.brought.items()},
        },  # "the last checkpoint" stays the same
        SOURCES_FILE: sources_record(plan.sources, {}),
    }
    if out is None:
        return new_run_directory(args.logs_dir, None, f"eval-{Path(plan.config.model_name).name}", files)
    if out.is_dir():
        out.rmdir()  # it is empty: the arguments were checked
    return new_run_directory(str(out.parent), out.name, "", files)


def _announce(plan: EvalPlan, run: RunDirectory, backend: Backend | None, display: Display) -> None:
    args = plan.args
    names = " against ".join(subject.name for subject in plan.subjects)
    planned = len(plan.subjects) * len(plan.tasks) * args.trials
    stored = sum(len(list(run.trajectories(KIND, n).glob("*.npz"))) for n in range(len(plan.subjects)))
    how = f"temperature {args.temperature:g}" if args.temperature else "greedy"
    where = f"{how}; {args.backend} at {backend.url}" if backend else "no server is needed"
    for subject in plan.subjects:
        if subject.endpoint is not None:
            where += f"; {subject.name} at {subject.endpoint['url']}"
    display.say(f"results go to {run.path}")
    if (user := model_of("user", plan.config.user)) is not None:
        display.say(f"simulated user: {user.model}")
    display.say(
        f"{names}: {len(plan.tasks)} tasks x {args.trials} trials{' x 2 policies' * (len(plan.subjects) - 1)} = "
        f"{planned} trials planned, {stored} of them finished earlier; {where}"
    )


async def _run(
    plan: EvalPlan, run: RunDirectory, solutions: Solutions, wiring: Wiring[Config]
) -> list[list[results.TaskResult]]:
    """Results of each policy, in order."""
    config, display, template = wiring.config, wiring.display, wiring.template
    ledger = Ledger(run.ledger, context_limit=config.context_limit)
    if plan.args.retry_ungraded:  # trials of quarantined tasks too: faults have left them ungraded
        ledger.quarantined.clear()
    found: list[list[results.TaskResult]] = []
    done = False
    with display:
        display.keep_log(run)
        try:
            rollouts = wiring.rollouts(run, ledger)
            async with rollouts.opened(plan.tasks, display.say):
                runner = Runner(plan, solutions, rollouts, run, wiring)
                for number in range(len(plan.subjects)):
                    groups_P = await runner.groups(number)
                    found.append([*zip(plan.tasks, groups_P, strict=True)])
                    conversations = Conversations(run, template)
                    await asyncio.to_thread(_keep_conversations, conversations, number, plan.tasks, groups_P)
            done = True
        finally:
            display.say(ledger.summary())
            if not done:
                display.say(f"stopped; continue with: {run.resume}")
    return found


def _keep_conversations(
    conversations: Conversations, number: int, tasks: list[Task], groups_P: list[TrajectoryGroup]
) -> None:
    """Write one file a set."""
    for name in dict.fromkeys(task.source for task in tasks):
        groups = [group for task, group in zip(tasks, groups_P, strict=True) if task.source == name]
        conversations.save(f"{batch_name(KIND, number)}-{name.replace('/', '_')}", groups)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the trials of each policy."""

    plan: EvalPlan
    solutions: Solutions
    rollouts: Rollouts
    run: RunDirectory
    wiring: Wiring[Config]

    async def groups(self, number: int) -> list[TrajectoryGroup]:
        """`trials` of each task by the policy with this number. Raises BackendError, EnvironmentFault, DiskFault."""
        subject = self.plan.subjects[number]
        if subject.endpoint is not None:
            return await self._with_endpoint(number, subject.endpoint)
        if self.wiring.backend is not None and not subject.is_oracle:
            return await self._with_server(number, self.wiring.backend)
        self.wiring.sampler.publish(self.solutions, number)
        return await self._sample(number, self._done(number))

    async def _with_endpoint(self, number: int, about: dict[str, Any]) -> list[TrajectoryGroup]:
        """The same, until a cap on spending. Raises UserError then."""
        policy = model_of("policy", json.dumps(about))
        assert policy is not None
        spent = Spent(self.run.path / f"requests_{number}.jsonl", policy.usd_per_million)
        remote, args = RemotePolicy(policy, self.wiring.template, spent), self.plan.args
        try:
            await remote.check()
            self.wiring.sampler.publish(remote, number)
            capped = until_spent(spent, args.max_usd, self.run.resume)
            return await run_until(self._sample(number, self._done(number)), capped)
        finally:
            await self.wiring.sampler.abandon()
            await remote.aclose()
            self.wiring.display.say(f"{policy.url}: {spent}")

    async def _with_server(self, number: int, backend: Backend) -> list[TrajectoryGroup]:
        """The same, and again those trials that a lost server interrupts."""
        planned, subject = len(self.plan.tasks) * self.plan.args.trials, self.plan.subjects[number]
        losses, known = 0, -1
        while True:
            done = self._done(number)
            losses, known = (0, len(done)) if len(done) > known else (losses + 1, known)
            if len({TrialName.parse(name).first for name in done}) == planned:  # one attempt of each slot
                return await self._sample(number, done)
            try:
                async with sampled(subject, backend, self.plan.config) as client:
                    self.wiring.sampler.publish(client, number)
                    ends = client.forgotten("sampling"), backend.silent("sampling")
                    try:
                        return await run_until(self._sample(number, done), *ends)
                    finally:
                        await self.wiring.sampler.abandon()
            except ServerLost as error:
                if losses >= MAX_LOSSES:
                    raise
                self.wiring.display.say(f"{error}; the remaining trials run as soon as the server answers")
                await backend.until_answering(self.plan.config.outage_limit_sec)
                await backend.reopen()

    def _done(self, number: int) -> dict[str, Trajectory]:
        """Finished trials by name that are not run again; of several in one slot the graded one comes first."""
        stored = read_batch(self.run.trajectories(KIND, number))
        graded = {name: trajectory for name, trajectory in stored.items() if trajectory.reward is not None}
        return graded if self.plan.args.retry_ungraded else graded | stored

    async def _sample(self, number: int, done: Mapping[str, Trajectory]) -> list[TrajectoryGroup]:
        folder, tasks, trials = self.run.trajectories(KIND, number), self.plan.tasks, self.plan.args.trials
        with self.wiring.display.trials(self.plan.subjects[number].name, len(tasks) * trials) as show:

            def finished(trajectory: Trajectory) -> None:
                write_trajectory(folder, trajectory)
                show(trajectory)

            return await self.rollouts.run_groups(
                tasks,
                trials,
                self.run.batch(KIND, number),
                kind=KIND,
                step=number,
                temperature=self.plan.args.temperature,
                on_trajectory=finished,
                done=done,
            )
