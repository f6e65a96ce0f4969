"""Qualifies one task: checks its format and build, then runs the oracle, a no-op and cheap attacks on the verifier."""

import asyncio
import hashlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harbortrainer.docker.images.builds import ImageError
from harbortrainer.docker.images.image import image_notes, images_of, push_images
from harbortrainer.qualify import findings
from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.attacks import BY_WORK, CODE, files_below, scripts_of, together
from harbortrainer.qualify.evidence import keep_output, why_not_built
from harbortrainer.qualify.findings import NETWORK, Finding, Severity, TaskReport
from harbortrainer.qualify.static import judge_dead, static_findings
from harbortrainer.qualify.trials import NO_OP, QualificationTrial, QualificationTrials
from harbortrainer.tasks.folders import digest, find_fault
from harbortrainer.venues.harbor.environment import PREBUILT_ONLY

LEAST_BYTES = 20  # a shorter file may equal another one by chance
REPEATS = 27  # of the verifier on oracles' states: with the first ones, a flakiness of 1 in 5 is missed once in 800
NO_OP_REPEATS, FEW_REPEATS = 20, 2  # the latter without a solution, where flakiness cannot be told from no work
UNPROVEN = "not checked: that it can be solved, that its verifier takes good work and is steady"
GIVEN = "given "  # begins the line of a path that the image has
UNWATCHED = (
    "verification runs beside the agent's work and is not watched here: what a policy changes of the programs that it "
    "runs is paid. Use one container without a compose file on Docker, or Harbor's separate verifier"
)


def read(task: Path) -> TaskReport:
    """Return a report on what is found without a container. Blocks."""
    report = TaskReport(task.name, str(task), digest(task))
    if fault := find_fault(task):
        report.add("format", Severity.ERROR, fault)
    else:
        report.findings += static_findings(task)
    return report


async def qualify(task: Path, trials: QualificationTrials, args: CheckArgs, building: asyncio.Semaphore) -> TaskReport:
    """Return a report; a broken format or build, a failing oracle or a passing no-op ends the qualification early."""
    report = await asyncio.to_thread(read, task)
    if report.bad or not await _build(report, task, trials, args, building):
        return report
    report.findings += findings.fetches(task)
    fresh: Sequence[QualificationTrial] = ()
    if not (task / "solution").is_dir() and not list(task.glob("steps/*/solution")):
        report.add("no solution", Severity.WARNING, UNPROVEN)
    elif not (fresh := await _oracle(report, task, trials, args)):
        return report
    if not trials.is_watched(task):
        report.add("not watched", Severity.WARNING, UNWATCHED)
    if await _no_op(report, task, trials, fresh):
        no_op, work = report.no_op or 0.0, fresh[0].work if fresh else {}
        rewards = await _attack(task, trials, no_op, work)
        report.findings += findings.judge_attacks(rewards, no_op, BY_WORK, work)
    return report


async def _build(
    report: TaskReport, task: Path, trials: QualificationTrials, args: CheckArgs, building: asyncio.Semaphore
) -> bool:
    if trials.config.environment_type != "docker":
        return True
    async with building:
        began, only = time.monotonic(), bool(trials.config.environment_kwargs.get(PREBUILT_ONLY))
        try:
            images = await images_of(task, trials.run_id, only)
            await push_images()
        except ImageError as error:
            kind, level = (NETWORK, Severity.WARNING) if error.passing else ("build", Severity.ERROR)
            report.add(kind, level, why_not_built(f"task {task.name}: {error}"))
            return False
        report.build_sec = time.monotonic() - began
    for _, note in image_notes(task.name, images):
        report.add("image", Severity.WARNING, note)
    if report.build_sec > args.slow_build_sec:
        report.add("slow build", Severity.WARNING, f"its image took {report.build_sec:.0f} s to build")
    return True


async def _oracle(
    report: TaskReport, task: Path, trials: QualificationTrials, args: CheckArgs
) -> Sequence[QualificationTrial]:
    """Fresh trials of the oracle; () = the task is bad. The last of several has a task without a solution."""
    n_strangers = int(args.n_oracle > 1 and trials.is_watched(task))
    each = -(-REPEATS // (args.n_oracle - n_strangers))
    fresh = [await trials.oracle(task, repeats=each)]
    if fresh[0].reward is not None and fresh[0].reward >= 1:
        others = [trials.oracle(task, repeats=each) for _ in range(args.n_oracle - 1 - n_strangers)]
        fresh += await asyncio.gather(*others, *(trials.stranger(task) for _ in range(n_strangers)))
    report.oracle = [one.reward for one in fresh]
    report.repeats = sum(len(one.repeats) for one in fresh)
    report.trial_sec = max(one.seconds for one in fresh)
    report.findings += await _with_output(report, findings.judge_oracle(fresh), fresh)
    if report.trial_sec > args.slow_trial_sec:
        report.add("slow", Severity.WARNING, f"a trial of its oracle took {report.trial_sec:.0f} s")
    return () if report.bad or report.passing else fresh


async def _with_output(report: TaskReport, found: list[Finding], fresh: Sequence[QualificationTrial]) -> list[Finding]:
    """The findings; where a trial of the oracle failed, they say where its output is kept."""
    failed = next((one for one in fresh if one.reward is None or one.reward < 1), None)
    if failed is None:
        return found
    file = await asyncio.to_thread(keep_output, report.name, report.digest, failed.left)
    return [replace(one, detail=f"{one.detail}; its output: {file}") for one in found]


async def _no_op(
    report: TaskReport, task: Path, trials: QualificationTrials, fresh: Sequence[QualificationTrial]
) -> bool:
    """Run an agent that only searches for the tests and the solution, and for files that the solution changes."""
    unasked = fresh[-1].unasked if fresh else ()
    script = f"{searching(task)}\n{existing(unasked)}"
    trial = await trials.script(task, NO_OP, script, repeats=NO_OP_REPEATS if fresh else FEW_REPEATS)
    given = {line.removeprefix(GIVEN) for line in trial.output.splitlines() if line.startswith(GIVEN)}
    report.findings += findings.judge_stranger(task, [one for one in unasked if one not in given])
    report.no_op = trial.reward
    report.findings += findings.judge_no_op(trial)
    if not fresh and trial.reward is not None:
        report.findings += judge_dead(trial.left.tests)
    if trial.cut:
        report.add(
            "not searched", Severity.WARNING, "the search for readable tests was not over after the agent's limit"
        )
    if found := readable(task, trial.output):
        report.add("hack: readable tests", Severity.ERROR, f"the agent can read {'; '.join(found[:3])}")
    return trial.reward is not None and trial.reward < 1


async def _attack(
    task: Path, trials: QualificationTrials, no_op: float, work: Mapping[str, bool]
) -> dict[str, float | None]:
    """Rewards of attacks by kind, those that were tried alone; {} = none earned more than doing nothing.

    `work`: files for those by the work. One that says no more than what has earned is left out.
    """
    rewards = dict[str, float | None]()
    for group, scripts in scripts_of(task, work).items():
        known = any((rewards.get(kind) or 0.0) > no_op for kind in findings.STATIC)
        left = {kind: script for kind, script in scripts.items() if not (known and kind == findings.HOLLOW)}
        rewards |= await _attack_together(task, trials, no_op, group, left)
    return rewards


async def _attack_together(
    task: Path, trials: QualificationTrials, no_op: float, group: str, scripts: Mapping[str, str]
) -> dict[str, float | None]:
    """Run a group's attacks in one trial. If that earned something or was not graded, each on its own, until one earns
    and the rest together earn nothing.
    """

    async def reward(kinds: Sequence[str]) -> float | None:
        kind = group if len(kinds) > 1 else "attack"
        return (await trials.script(task, kind, together(scripts[one] for one in kinds), repeats=0)).reward

    def earns(reward: float | None) -> bool:
        return reward is None or reward > no_op

    left, found = list(scripts), dict[str, float | None]()
    if not earns(every := await reward(left)):
        return {}
    if len(left) == 1:
        return {left[0]: every}
    while left:
        kind, *left = left
        found[kind] = await reward([kind])
        if earns(found[kind]) and len(left) > 1 and not earns(await reward(left)):
            break
    if every is not None and not any(map(earns, found.values())):
        return {f"{' and '.join(scripts)} together": every}
    return found


def searching(task: Path) -> str:
    """Print digest and path of every file that is as long as one of the task's tests or its solution."""
    sizes = " -o ".join(f"-size {size}c" for size in sorted({len(content) for content in _hidden(task).values()}))
    if not sizes:
        return "true"
    skipped = "-path /proc -o -path /sys -o -path /dev"
    return f"find / \\( {skipped} \\) -prune -o -type f \\( {sizes} \\) -exec sha256sum {{}} + 2>/dev/null; true"


def existing(names: Sequence[str]) -> str:
    """Print which of the paths exist, each behind GIVEN."""
    paths = [name for name in names if name.startswith("/") and name.isprintable()]
    return "\n".join([*(f"[ ! -e {path} ] || echo {GIVEN}{path}" for path in map(shlex.quote, paths)), "true"])


def readable(task: Path, output: str) -> list[str]:
    """Return files of the tests or the solution in the output of `searching`: "NAME as PATH"."""
    known = {hashlib.sha256(content).hexdigest(): name for name, content in _hidden(task).items()}
    pairs = (line.split(maxsplit=1) for line in output.splitlines() if line[:64] in known)
    return sorted(f"{known[digest]} as {path}" for digest, path in pairs)


def _hidden(task: Path) -> dict[str, bytes]:
    """Programs among the tests and the solution, by path; the agent may legitimately have their data files."""
    files = [
        file
        for top in ("tests", "solution")
        for root in (task, *task.glob("steps/*"))
        for file in files_below(root / top)
    ]
    found = {file.relative_to(task).as_posix(): file.read_bytes() for file in files if file.suffix in CODE}
    return {name: content for name, content in found.items() if len(content) >= LEAST_BYTES}
