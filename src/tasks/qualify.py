"""The qualification of one task: format, build, oracle, doing nothing, cheap attacks."""

import asyncio
import math
import time
from dataclasses import dataclass
from pathlib import Path

from src.errors import UserError
from src.rollout.docker.images import prepare_images
from src.rollout.task import digest, find_fault
from src.tasks import findings
from src.tasks.attacks import ATTACKS, readable, searching
from src.tasks.findings import Level, Report
from src.tasks.trials import Trials, Tried

REPEATS = 27  # of the verifier on oracles' states: with the first ones, a flakiness of 1 in 5 is missed once in 800
NO_OP_REPEATS = 20
ATTACK_REPEATS, ATTACK_PAUSE_SEC = 2, 1.0  # where what the agent started lives on during verification


@dataclass(frozen=True, slots=True)
class Limits:
    """`n_oracle`: fresh trials of the oracle. `slow_*_sec`: above it a warning."""

    n_oracle: int = 3
    slow_build_sec: float = 120.0
    slow_trial_sec: float = 300.0


async def qualify(task: Path, trials: Trials, limits: Limits, building: asyncio.Semaphore) -> Report:
    """Stops at what makes the rest pointless: a broken format or build, an oracle that fails, a no-op that passes."""
    report = Report(task.name, str(task), await asyncio.to_thread(digest, task))
    if fault := await asyncio.to_thread(find_fault, task):
        report.add("format", Level.ERROR, fault)
        return report
    if not await _build(report, task, trials, limits, building):
        return report
    report.findings += findings.fetches(task)
    if not (task / "solution").is_dir() and not list(task.glob("steps/*/solution")):
        report.add("no solution", Level.WARNING, "there is no oracle to prove that the task can be solved")
    elif not await _oracle(report, task, trials, limits):
        return report
    if await _no_op(report, task, trials):
        report.findings += findings.judge_attacks(await _attack(task, trials, report.no_op or 0.0), report.no_op or 0.0)
    return report


async def _build(report: Report, task: Path, trials: Trials, limits: Limits, building: asyncio.Semaphore) -> bool:
    if trials.config.environment_type != "docker":
        return True
    async with building:
        began = time.monotonic()
        try:
            await prepare_images([task], run_id=trials.run_id)
        except UserError as error:
            report.add("build", Level.ERROR, " ".join(str(error).split())[-300:])
            return False
        report.build_sec = time.monotonic() - began
    if report.build_sec > limits.slow_build_sec:
        report.add("slow build", Level.WARNING, f"its image took {report.build_sec:.0f} s to build")
    return True


async def _oracle(report: Report, task: Path, trials: Trials, limits: Limits) -> bool:
    """The first trial goes without a network where the environment can do that; only its failure costs another one."""
    each = -(-REPEATS // limits.n_oracle)
    first = await trials.oracle(task, repeats=each, offline=True)
    online: Tried | None = None
    if first.reward is None or first.reward < 1:
        online = await trials.oracle(task, repeats=each)
    passed_later = any(findings.reward_of(again) >= 1 for again in first.repeats)
    tried = [first, online] if online and passed_later else [online or first]  # no network does not come and go
    if tried[0].reward is not None and tried[0].reward >= 1:
        tried += await asyncio.gather(*(trials.oracle(task, repeats=each) for _ in range(limits.n_oracle - 1)))
    report.oracle = [one.reward for one in tried]
    report.repeats = sum(len(one.repeats) for one in tried)
    report.trial_sec = max(one.seconds for one in tried)
    report.findings += [*findings.judge_network(first, online), *findings.judge_oracle(tried)]
    if report.trial_sec > limits.slow_trial_sec:
        report.add("slow", Level.WARNING, f"a trial of its oracle took {report.trial_sec:.0f} s")
    return not report.bad


async def _no_op(report: Report, task: Path, trials: Trials) -> bool:
    """Nothing is done but looking for the tests and the solution."""
    tried = await trials.script(task, "no-op", searching(task), repeats=NO_OP_REPEATS)
    report.no_op = tried.reward
    report.findings += findings.judge_no_op(tried)
    if found := readable(task, tried.said):
        report.add("hack: readable tests", Level.ERROR, f"the agent can read {'; '.join(found[:3])}")
    return tried.reward is not None and tried.reward < 1


async def _attack(task: Path, trials: Trials, no_op: float) -> dict[str, float | None]:
    """All attacks in one trial; each on its own only where that earned something, or could not be graded."""
    scripts = {kind: attack(task) for kind, attack in ATTACKS.items()}
    repeats = ATTACK_REPEATS if trials.keeps_processes(task) else 0
    every = "\n".join(f"({script}\n)" for script in scripts.values())
    together = _earned(await trials.script(task, "attacks", every, repeats=repeats, pause=ATTACK_PAUSE_SEC))
    if together is not None and together <= no_op:
        return {}
    again = {"repeats": repeats, "pause": ATTACK_PAUSE_SEC}
    alone = await asyncio.gather(*(trials.script(task, "attack", one, **again) for one in scripts.values()))
    rewards = dict(zip(scripts, map(_earned, alone), strict=True))
    if any(reward is not None and reward > no_op for reward in rewards.values()) or together is None:
        return rewards
    return {"several attacks together": together}


def _earned(tried: Tried) -> float | None:
    """The most of all verifications: a process that writes the reward again and again may miss some of them."""
    if tried.reward is None:
        return None
    again = [value for value in map(findings.reward_of, tried.repeats) if not math.isnan(value)]
    return max([tried.reward, *again])
