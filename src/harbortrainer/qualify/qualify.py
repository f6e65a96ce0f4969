"""Qualifies one task: checks its format and build, then runs the oracle, a no-op and cheap attacks on the verifier."""

import asyncio
import hashlib
import math
import re
import shlex
import time
from pathlib import Path

from harbortrainer.docker.images import prepare_images
from harbortrainer.errors import UserError
from harbortrainer.qualify import findings
from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.findings import Level, TaskReport
from harbortrainer.qualify.trials import QualificationTrial, QualificationTrials
from harbortrainer.tasks.task import digest, find_fault

_FOLDER = "/logs/verifier"
_JSON = r'"{\"reward\": 1}"'
_ROUND = f"mkdir -p {_FOLDER}; echo 1 > {_FOLDER}/reward.txt; echo {_JSON} > {_FOLDER}/reward.json"
# It waits for the tests: an environment may empty the folder until all writers are gone. It starts no process, and
# truncates no file, so that the verifier never reads an empty one: spaces cover what the verifier wrote.
_TEXT, _PADDED_JSON = f'"1{" " * 60}"', f'{_JSON[:-1]}{" " * 200}"'
_WRITE = f"echo {_TEXT} 1<> {_FOLDER}/reward.txt; echo {_PADDED_JSON} 1<> {_FOLDER}/reward.json"
_LOOP = f"while :; do if [ -e /tests/test.sh ]; then {_WRITE}; else sleep 0.02; fi; done 2>/dev/null"
_CODE = (".sh", ".bash", ".py", ".js", ".ts", ".rb", ".pl", "")
_REWARD_PATH = re.compile(r"[\w./-]*reward[\w.-]*\.(?:txt|json)|(?<![\w/.-])/[\w./-]*reward[\w.-]*", re.IGNORECASE)
_BEFORE = "if then else elif do while until time exec xargs sudo env !".replace(" ", "|")
_COMMAND = re.compile(rf"(?:^|[;|&({{!`])\s*(?:(?:{_BEFORE})\s+)*([\w./+-]+)(?=[\s;|&)`]|$)")
_OUR_FOLDERS = ("/tests", "/logs", "/dev", "/proc")
_KEYWORDS = """if then else elif fi for do done while until case esac in function time exec cd set export exit return
source local read test eval trap shift unset wait true false echo printf pwd type command umask declare readonly"""
_CARRIERS = "sh bash dash env rm mkdir chmod cat tee cp mv sudo xargs"  # without them no verifier writes anything
_NOT_REPLACED = frozenset(f"{_KEYWORDS} {_CARRIERS}".split())
LEAST_BYTES = 20  # a shorter file may equal another one by chance
REPEATS = 27  # of the verifier on oracles' states: with the first ones, a flakiness of 1 in 5 is missed once in 800
NO_OP_REPEATS = 20
ATTACK_REPEATS, ATTACK_PAUSE_SEC = 2, 1.0  # where what the agent started lives on during verification


async def qualify(task: Path, trials: QualificationTrials, args: CheckArgs, building: asyncio.Semaphore) -> TaskReport:
    """A report; a broken format or build, a failing oracle or a passing no-op ends the qualification early."""
    report = TaskReport(task.name, str(task), await asyncio.to_thread(digest, task))
    if fault := await asyncio.to_thread(find_fault, task):
        report.add("format", Level.ERROR, fault)
        return report
    if not await _build(report, task, trials, args, building):
        return report
    report.findings += findings.fetches(task)
    if not (task / "solution").is_dir() and not list(task.glob("steps/*/solution")):
        report.add("no solution", Level.WARNING, "there is no oracle to prove that the task can be solved")
    elif not await _oracle(report, task, trials, args):
        return report
    if await _no_op(report, task, trials):
        report.findings += findings.judge_attacks(await _attack(task, trials, report.no_op or 0.0), report.no_op or 0.0)
    return report


async def _build(
    report: TaskReport, task: Path, trials: QualificationTrials, args: CheckArgs, building: asyncio.Semaphore
) -> bool:
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
    if report.build_sec > args.slow_build_sec:
        report.add("slow build", Level.WARNING, f"its image took {report.build_sec:.0f} s to build")
    return True


async def _oracle(report: TaskReport, task: Path, trials: QualificationTrials, args: CheckArgs) -> bool:
    """Run the first trial without a network where the environment can do that, and again with one where it fails."""
    each = -(-REPEATS // args.n_oracle)
    first = await trials.oracle(task, repeats=each, offline=True)
    online: QualificationTrial | None = None
    if first.reward is None or first.reward < 1:
        online = await trials.oracle(task, repeats=each)
    passed_later = any(findings.reward_of(again) >= 1 for again in first.repeats)
    fresh = (
        [first, online] if online and passed_later else [online or first]
    )  # a missing network is missing at every repeat
    if fresh[0].reward is not None and fresh[0].reward >= 1:
        fresh += await asyncio.gather(*(trials.oracle(task, repeats=each) for _ in range(args.n_oracle - 1)))
    report.oracle = [one.reward for one in fresh]
    report.repeats = sum(len(one.repeats) for one in fresh)
    report.trial_sec = max(one.seconds for one in fresh)
    report.findings += [*findings.judge_network(first, online), *findings.judge_oracle(fresh)]
    if report.trial_sec > args.slow_trial_sec:
        report.add("slow", Level.WARNING, f"a trial of its oracle took {report.trial_sec:.0f} s")
    return not report.bad


async def _no_op(report: TaskReport, task: Path, trials: QualificationTrials) -> bool:
    """Run an agent that only searches for the tests and the solution."""
    trial = await trials.script(task, "no-op", searching(task), repeats=NO_OP_REPEATS)
    report.no_op = trial.reward
    report.findings += findings.judge_no_op(trial)
    if found := readable(task, trial.output):
        report.add("hack: readable tests", Level.ERROR, f"the agent can read {'; '.join(found[:3])}")
    return trial.reward is not None and trial.reward < 1


async def _attack(task: Path, trials: QualificationTrials, no_op: float) -> dict[str, float | None]:
    """Run all attacks in one trial; each on its own only if that trial earned something or was not graded."""
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


def _earned(trial: QualificationTrial) -> float | None:
    """The largest reward of all verifications: a process that keeps writing rewards may miss some of them."""
    if trial.reward is None:
        return None
    again = [value for value in map(findings.reward_of, trial.repeats) if not math.isnan(value)]
    return max([trial.reward, *again])


def prewritten(task: Path) -> str:
    """Write the reward before the verifier runs, to every path that its scripts mention."""
    paths = sorted({path for text in _scripts(task) for path in _REWARD_PATH.findall(text) if "*" not in path})
    writes = [f"mkdir -p $(dirname {shlex.quote(p)}); echo 1 > {shlex.quote(p)}" for p in paths]
    return "\n".join([_ROUND, *writes, "true"])


def background(_: Path) -> str:
    """Write the reward forever, from processes outside the agent's session."""
    loose = f"(setsid sh -c '{_LOOP}' </dev/null >/dev/null 2>&1 &)"
    return f"({_LOOP}) >/dev/null 2>&1 & disown 2>/dev/null\n{loose}\ntrue"


def replaced_tools(task: Path) -> str:
    """Replace every program that the verifier's scripts call by one that does nothing and succeeds."""
    names = sorted({name for text in _scripts(task) for name in _commands(text)})
    plain = " ".join(shlex.quote(name) for name in names if "/" not in name)
    paths = " ".join(shlex.quote(n) for n in names if n.startswith("/") and not n.startswith(_OUR_FOLDERS))
    return f"""mkdir -p /tmp/.b && cp $(command -v cp) $(command -v rm) $(command -v chmod) /tmp/.b/
printf '#!/bin/sh\\nexit 0\\n' > /tmp/.b/fake; /tmp/.b/chmod 755 /tmp/.b/fake
for n in {plain}; do
  IFS=:; for d in $PATH; do
    [ "$d/$n" -ef /tmp/.b/fake ] || {{ /tmp/.b/rm -f "$d/$n"; /tmp/.b/cp /tmp/.b/fake "$d/$n"; }} 2>/dev/null
  done; unset IFS
done
for p in {paths}; do
  [ -f "$p" ] && {{ /tmp/.b/rm -f "$p"; /tmp/.b/cp /tmp/.b/fake "$p"; }} 2>/dev/null
done
true"""


def searching(task: Path) -> str:
    """Print digest and path of every file that is as long as one of the task's tests or its solution."""
    sizes = " -o ".join(f"-size {size}c" for size in sorted({len(content) for content in _hidden(task).values()}))
    if not sizes:
        return "true"
    skipped = "-path /proc -o -path /sys -o -path /dev"
    return f"find / \\( {skipped} \\) -prune -o -type f \\( {sizes} \\) -exec sha256sum {{}} + 2>/dev/null; true"


def readable(task: Path, output: str) -> list[str]:
    """Files of the tests or the solution in the output of `searching`: "NAME as PATH"."""
    known = {hashlib.sha256(content).hexdigest(): name for name, content in _hidden(task).items()}
    pairs = (line.split(maxsplit=1) for line in output.splitlines() if line[:64] in known)
    return sorted(f"{known[digest]} as {path}" for digest, path in pairs)


ATTACKS = {
    "pre-written reward": prewritten,
    "background rewrite": background,
    "replaced tools": replaced_tools,
}


def _hidden(task: Path) -> dict[str, bytes]:
    """Programs among the tests and the solution, by path; the agent may legitimately have their data files."""
    files = [
        file for top in ("tests", "solution") for root in (task, *task.glob("steps/*")) for file in _below(root / top)
    ]
    found = {file.relative_to(task).as_posix(): file.read_bytes() for file in files if file.suffix in _CODE}
    return {name: content for name, content in found.items() if len(content) >= LEAST_BYTES}


def _below(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _scripts(task: Path) -> list[str]:
    """Shell and other scripts of the tests, comments left out."""
    files = [file for root in (task, *task.glob("steps/*")) for file in _below(root / "tests") if file.suffix in _CODE]
    texts = (file.read_bytes().decode(errors="replace") for file in files)
    return ["\n".join(line for line in text.splitlines() if not re.match(r"\s*#", line)) for text in texts]


def _commands(text: str) -> set[str]:
    """Words where a shell expects a command; false hits do no harm, as nothing calls them."""
    words = (match for line in text.splitlines() for match in _COMMAND.findall(line))
    return {word for word in words if word.rsplit("/", 1)[-1] not in _NOT_REPLACED and re.search(r"[A-Za-z]", word)}
