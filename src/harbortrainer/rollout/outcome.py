"""The outcome of a trial, the quarantine of tasks that keep failing, and verifiers that could not install."""

import logging
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harbortrainer.docker.archive import READ
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.learning.treatment import PASSING
from harbortrainer.policy.tinker_llm import TinkerLLM

if TYPE_CHECKING:
    from harbor.models.trial.result import ExceptionInfo, TrialResult

# The agent's stop reason -> outcome of a trial that was graded.
GRADED = {
    "done": Outcome.COMPLETED,
    "session_ended": Outcome.COMPLETED,  # the policy left its shell: it considers the task done
    "max_turns": Outcome.MAX_TURNS,
    "context_length": Outcome.CONTEXT_LENGTH,
    "timeout": Outcome.AGENT_TIMEOUT,
    "interrupted": Outcome.AGENT_TIMEOUT,  # by Harbor's own limit on the agent; nothing else is graded after that
    "policy_error": Outcome.POLICY_ERROR,
}

log = logging.getLogger("harbortrainer")
SAMPLING = "sampling: "  # begins the detail of a trial that was lost to the server
UNANSWERED = f"{SAMPLING}the first request had no answer when the time was over"
USER = "user: "  # begins that of one whose simulated user failed

_NO_SPACE = "no space left on device"  # in the text of Docker's answers

Verdict = tuple[Outcome, str, float | None]  # outcome, detail in one line, reward


def classify(result: "TrialResult", llm: TinkerLLM) -> Verdict:
    """Outcome, detail and reward of a finished trial; only trainable outcomes have a reward."""
    if llm.fault is not None:
        return Outcome.INFRASTRUCTURE_ERROR, SAMPLING + str(llm.fault), None
    if (lost := without_grade(result)) is not None:
        return lost
    reward, problem = read_reward(result.verifier_result.rewards if result.verifier_result else None)
    if reward is None:
        return Outcome.VERIFIER_ERROR, problem, None
    if not any(turn.completion_tokens_T for turn in llm.turns):
        detail = UNANSWERED if llm.unanswered else "nothing was sampled before the trial ended"
        return Outcome.INFRASTRUCTURE_ERROR, detail, None
    detail = "the policy ended its shell" if llm.stop_reason == "session_ended" else ""
    return GRADED[llm.stop_reason], detail, reward


def without_grade(result: "TrialResult") -> Verdict | None:
    """The verdict on a trial whose grade an exception prevented; None = none did."""
    if (fault := ungraded(result)) is None:
        return None
    detail = f"{fault.exception_type}: {' '.join(fault.exception_message.split())[:300]}"
    return _blame(result, fault), detail, None


def lost_to_server(trajectory: Trajectory) -> bool:
    return trajectory.detail.startswith(SAMPLING)


def blames_task(trajectory: Trajectory) -> bool:
    """Whether a trial without a reward counts against its task.

    Those of the server, the policy, the simulated user, a network and Docker's disk do not.
    """
    if _NO_SPACE in trajectory.detail.lower() or trajectory.detail.startswith((SAMPLING, USER, PASSING)):
        return False
    return trajectory.outcome in (Outcome.VERIFIER_ERROR, Outcome.INFRASTRUCTURE_ERROR)


def read_reward(rewards: dict[str, float | int] | None) -> tuple[float | None, str]:
    """The value of `reward`, else the only number; or None and the reason."""
    if not rewards:
        return None, "the verifier left no reward"
    if "reward" not in rewards and len(rewards) > 1:
        return None, f"reward.json has no key 'reward' but {', '.join(sorted(rewards))}; name one of them reward"
    value = float(rewards["reward"] if "reward" in rewards else next(iter(rewards.values())))
    return (value, "") if math.isfinite(value) else (None, f"the reward is {value}")


def recorded(result: "TrialResult") -> "list[ExceptionInfo]":
    """Every exception that Harbor kept, the trial's before those of its steps."""
    found = [result.exception_info, *(step.exception_info for step in result.step_results or [])]
    return [info for info in found if info is not None]


def ungraded(result: "TrialResult") -> "ExceptionInfo | None":
    """The first exception that prevented a grade; a timeout of the agent does not."""
    from harbor.trial.errors import AgentTimeoutError

    return next((info for info in recorded(result) if info.exception_type != AgentTimeoutError.__name__), None)


def _blame(result: "TrialResult", fault: "ExceptionInfo") -> Outcome:
    """The verifier's fault, when Harbor's table says so or its phase had begun; otherwise the infrastructure's."""
    from harbor.models.trial.error_policy import FailureCause

    if fault.policy.cause is FailureCause.CANCELLED:
        return Outcome.CANCELLED
    started = result.verifier is not None or any(step.verifier for step in result.step_results or [])
    verifier = fault.policy.cause is FailureCause.VERIFIER_FAILED or started
    return Outcome.VERIFIER_ERROR if verifier else Outcome.INFRASTRUCTURE_ERROR


class Quarantine:
    """Excludes a task after `limit` faults in a row that are not the server's or the policy's; 0 = never.

    `reasons`: task name -> why, those of an earlier process included.
    """

    def __init__(self, limit: int, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        self._limit = limit
        self._in_a_row: Counter[str] = Counter()

    def note(self, trajectory: Trajectory) -> None:
        """Count a finished trial."""
        task = trajectory.task_name
        if trajectory.reward is not None:
            self._in_a_row[task] = 0
        elif blames_task(trajectory):
            self._in_a_row[task] += 1
            if self._limit and self._in_a_row[task] >= self._limit and task not in self.reasons:
                self.reasons[task] = f"{trajectory.outcome}: {trajectory.detail}"
                log.warning(
                    "task %s is left out of the run after %d faults in a row, the last: %s",
                    task, self._in_a_row[task], self.reasons[task],
                )  # fmt: skip


COULD_NOT_INSTALL = "the verifier could not install"  # begins the cause of a trial that ended so
FETCHES = re.compile(
    r"\b(curl|wget|git clone|apt(?:-get)?(?: -\S+)* (?:update|install)|apk add|pip3? install|uv (?:pip|tool|sync)|uvx"
    r"|npm (?:i|install|ci)|npx|cargo install|go (?:get|install))\b"
)
_LOCAL = r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[::1\])"
_ADDRESS = re.compile(r"https?://([^\s/:\"']+|\[::1\])")
_IS_LOCAL = re.compile(rf"{_LOCAL}\b|--noproxy|/dev/tcp/", re.IGNORECASE)
_MOST = 65536  # bytes of a verifier's output that are read, of its beginning and of its end
# An installer's report of its failure.
_FAILED = re.compile(
    r"^(E: (?:Unable to (?:locate package|fetch)|Failed to fetch|Package .* has no installation candidate).*"
    r"|W: Failed to fetch.*|Err:\d+ .*|.*Temporary failure (?:resolving|in name resolution).*|.*NewConnectionError.*"
    r"|curl: \((?:5|6|7|28|35|52|56|60)\) .*|wget: (?:unable to resolve|bad address).*"
    r"|.*failed: (?:Name or service not known|Connection refused|Connection timed out|Network is unreachable).*"
    r"|ERROR: (?:Could not find a version|No matching distribution|unable to select packages).*"
    r"|error: (?:Request failed|Failed to fetch|error sending request).*|.*failed to lookup address information.*"
    r"|npm (?:ERR!|error).*(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT).*|fatal: unable to access 'http.*)$",
    re.MULTILINE,
)
# What is missing then: a program (as bash and dash say it), or a module of Python.
_MISSING = re.compile(
    r"^\S+: (?:line )?\d+: (?P<program>[\w.+-]+): (?:command )?not found$"
    r"|No module named '?(?P<module>\w+)|^error: (?P<uv>Request failed|Failed to fetch)",
    re.MULTILINE,
)
_TESTS_RAN = re.compile(
    r"test session starts|^=+ .*\d (?:passed|failed|errors?)\b|^(?:PASSED|FAILED) |^Ran \d+ tests? in"
    r"|^(?:not )?ok \d+",
    re.MULTILINE,
)


def failed_install(task: Path, trial: Path) -> str:
    """What the verifier could not install, so that its tests never ran; "" without signs of that. Blocks.

    For trials that earned nothing. The signs, all of them: a script that installs something, an installer's error in
    its output, then a missing program or module that the script installs (or uv, which runs the tests, unable to
    fetch them), and no trace of a test that ran. A policy can cause them: `verifier_network` decides who is at fault.
    """
    wanted = _installed("\n".join(code(file) for file in scripts(task)))
    found = (_diagnose(output, wanted) for output in outputs(trial)) if wanted else iter(())
    return next((cause for cause in found if cause), "")


def outputs(trial: Path) -> Iterator[str]:
    """What the verifier of each step printed, its beginning and end. The agent may have made files of that name."""
    found = (file for folder in ("verifier", "steps/*/verifier") for file in trial.glob(f"{folder}/test-stdout.txt"))
    return (_read(file) for file in sorted(found))


def fetching(script: str) -> list[str]:
    """The commands of a shell script that fetch from the network, without those that only reach this host."""
    addresses = _ADDRESS.findall(script)
    only_local = bool(addresses) and all(re.fullmatch(_LOCAL, address) for address in addresses)
    return [word for line in _lines(script) for word in FETCHES.findall(line) if _goes_out(word, line, only_local)]


def scripts(task: Path) -> list[Path]:
    """The shell scripts of the task's verifier."""
    return [*task.glob("tests/**/*.sh"), *task.glob("steps/*/tests/**/*.sh")]


def code(file: Path) -> str:
    """The text without comment lines."""
    lines = file.read_bytes().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def failed_fetch(output: str) -> str:
    """The first line in which a program reports that it could not fetch something; "" = there is none."""
    return next((line for line in _FAILED.findall(output) if not re.search(_LOCAL, line)), "")


def _diagnose(output: str, wanted: set[str]) -> str:
    failed = failed_fetch(output)
    if not failed or _TESTS_RAN.search(output):
        return ""
    for missing in _MISSING.finditer(output):
        name = missing["program"] or missing["module"] or ("uvx" if missing["uv"] else "")
        if name in wanted:
            return f"{COULD_NOT_INSTALL} {name}: {' '.join(failed.split())[:200]}"
    return ""


def _installed(script: str) -> set[str]:
    """The names in commands that fetch something."""
    commands = [part for line in _lines(script) for part in re.split(r"&&|;|\|\|", line) if fetching(part)]
    names = {name for command in commands for name in re.findall(r"[A-Za-z_][\w.+-]*", command)}
    return names | ({"uvx"} if "uv" in names else set())


def _goes_out(word: str, line: str, only_local: bool) -> bool:
    if word not in ("curl", "wget"):
        return True
    addresses = _ADDRESS.findall(line)
    if any(not re.fullmatch(_LOCAL, address) for address in addresses):
        return True
    return not (_IS_LOCAL.search(line) or only_local)


def _lines(script: str) -> list[str]:
    return script.replace("\\\n", " ").splitlines()


def _read(file: Path) -> str:
    """The text of a file, "" if it is none: a container may share its folder."""
    try:
        with open(os.open(file, READ), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            content = opened.read(_MOST)
            if found.st_size > 2 * _MOST:
                opened.seek(-_MOST, os.SEEK_END)
                content += b"\n"
            content += opened.read(_MOST)
    except OSError:
        return ""
    return content.decode(errors="replace")
