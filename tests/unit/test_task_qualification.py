"""What follows from the trials of a qualification, attacks as they read a task, the cache and the quarantine list."""

import hashlib
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.durable.listed import Listed
from harbortrainer.errors import EnvironmentFault, UserError
from harbortrainer.qualify import check, findings
from harbortrainer.qualify.arguments import CheckArgs
from harbortrainer.qualify.attacks import (
    ATTACKS,
    BY_WORK,
    empty_work,
    hollow_work,
    imported_work,
    prewritten,
    scripts_of,
    together,
)
from harbortrainer.qualify.check import Cache
from harbortrainer.qualify.findings import HOLLOW, Finding, Severity, TaskReport, reward_of
from harbortrainer.qualify.qualify import _attack, existing, readable, searching
from harbortrainer.qualify.trials import QualificationTrial
from harbortrainer.tasks.folders import (
    QUARANTINE_FILE,
    load_tasks,
    read_quarantine,
    write_quarantine,
)
from tests.support.task_folder import write_task


def kinds(found: list[Finding]) -> list[tuple[str, Severity]]:
    return [(one.kind, one.level) for one in found]


PASS, FAIL, HANG, UNANSWERED = (
    QualificationTrial(1.0),
    QualificationTrial(0.0),
    QualificationTrial(None, "VerifierTimeoutError: after 2 s"),
    QualificationTrial(None, "ReadTimeout: Docker gave no answer to POST /v1.41/containers/create in time"),
)


def test_a_task_whose_trial_docker_left_unanswered_has_no_verdict() -> None:
    """It was bad, and stayed so: the cache has the reports of bad tasks."""
    report = TaskReport("t", "/t", "d", findings.judge_oracle([UNANSWERED]), oracle=[None])
    assert (report.verdict, report.bad, report.passing) == ("unproven", False, True)


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ([PASS, PASS], []),
        ([QualificationTrial(1.0, repeats=("1", "1.0", '{"reward": 1, "style": 0}'))], []),
        ([FAIL], [("oracle fails", Severity.ERROR)]),
        ([QualificationTrial(0.5), QualificationTrial(0.5)], [("oracle fails", Severity.ERROR)]),
        ([PASS, FAIL, PASS], [("flaky", Severity.ERROR)]),
        ([PASS, HANG], [("hanging verifier", Severity.ERROR)]),
        ([UNANSWERED], [(findings.NETWORK, Severity.WARNING)]),
        ([QualificationTrial(None, "RewardFileNotFoundError: no")], [("oracle fails", Severity.ERROR)]),
        ([QualificationTrial(1.0, repeats=("1", "0", "1"))], [("flaky", Severity.ERROR)]),
        ([QualificationTrial(1.0, repeats=("1", "", "1"))], [("flaky", Severity.ERROR)]),
        ([QualificationTrial(1.0, repeats=("0", "0", ""))], [("verifier not repeatable", Severity.WARNING)]),
    ],
)
def test_oracle(tried: list[QualificationTrial], found: list[tuple[str, Severity]]) -> None:
    assert kinds(findings.judge_oracle(tried)) == found


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        (FAIL, []),
        (PASS, [("no-op passes", Severity.ERROR)]),
        (QualificationTrial(0.25), [("no-op earns something", Severity.WARNING)]),
        (QualificationTrial(0.0, repeats=("0", "0", "1")), [("flaky", Severity.ERROR)]),
        (QualificationTrial(0.0, repeats=("0", "", "0")), []),
        (HANG, [("hanging verifier", Severity.ERROR)]),
        (UNANSWERED, [(findings.NETWORK, Severity.WARNING)]),
        (QualificationTrial(None, "RewardFileNotFoundError"), [("no-op is not graded", Severity.ERROR)]),
    ],
)
def test_doing_nothing(tried: QualificationTrial, found: list[tuple[str, Severity]]) -> None:
    assert kinds(findings.judge_no_op(tried)) == found


def test_an_attack_counts_when_it_earns_more_than_doing_nothing() -> None:
    rewards = {"a": 1.0, "b": 0.2, "c": None, "d": 0.0}
    assert kinds(findings.judge_attacks(rewards, 0.2)) == [("hack: a", Severity.ERROR)]
    assert kinds(findings.judge_attacks(rewards, 0.0, {"b"})) == [
        ("hack: a", Severity.ERROR),
        ("hack: b", Severity.WARNING),
    ]


def test_attacks_on_the_work_name_its_files() -> None:
    files = {"/app/a": False, "/app/b": True, "/app/c": False, "/app/d": False}
    (found,) = findings.judge_attacks({HOLLOW: 1.0}, 0.0, BY_WORK, files)
    assert (found.kind, found.level) == ("hack: hollow work", Severity.WARNING)
    assert found.detail == "earned 1 without the work (doing nothing: 0): /app/a, /app/b, /app/c …"


def test_work_that_only_the_solution_tells_is_named_with_the_command_that_allows_it() -> None:
    unasked = ("/usr/bin/greet", "/a b", "process server", "/c")
    (found,) = findings.judge_stranger(Path("/tasks/t"), unasked)
    assert (found.kind, found.level) == ("honest work may be unasked", Severity.WARNING)
    assert found.detail.startswith("verification needs /usr/bin/greet, /a b, process server (and 1 more), which the ")
    command = "python -m src.tasks allow /tasks/t /usr/bin/greet '/a b' process:server (and 1 more)"
    assert found.detail.endswith(command)
    assert findings.judge_stranger(Path("/tasks/t"), ()) == []


def test_what_the_image_has_too_is_no_choice_of_the_solution(tmp_path: Path) -> None:
    (tmp_path / "a b").touch()
    script = existing([f"{tmp_path}/a b", f"{tmp_path}/c", "process x", "/d\ne"])
    assert subprocess.check_output(["sh", "-c", script], text=True) == f"given {tmp_path}/a b\n"


class FakeTrials:
    """Each trial earns by what its script contains."""

    def __init__(self, rewards: dict[str, float | None]) -> None:
        self.ran: list[tuple[str, int]] = []
        self._rewards = rewards

    async def script(self, task: Path, kind: str, script: str, *, repeats: int) -> QualificationTrial:
        self.ran.append((kind, repeats))
        found = [reward for words, reward in self._rewards.items() if words in script]
        return QualificationTrial(None if None in found else max([0.0, *(one or 0.0 for one in found)]))


async def attacked(
    task: Path, rewards: dict[str, float | None], work: dict[str, bool] | None = None
) -> tuple[dict[str, Any], list[Any]]:
    trials: Any = FakeTrials(rewards)
    return await _attack(task, trials, 0.0, work or {}), trials.ran


async def test_a_task_that_no_attack_wins_costs_one_trial_a_group(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    assert await attacked(task, {}) == ({}, [("task", 0)])


async def test_the_attack_that_earns_is_named_by_trials_of_its_group_alone(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    rewards, ran = await attacked(task, {"/logs/verifier/reward.txt": 1.0})
    assert rewards == dict.fromkeys(ATTACKS, 0.0) | {"pre-written reward": 1.0, "pre-written tests": 1.0}
    assert ran == [("task", 0), ("attack", 0), ("attack", 0), ("task", 0), ("attack", 0), ("attack", 0)]
    rewards, _ = await attacked(task, {"import os": None})
    assert rewards["imported work"] is None and findings.judge_attacks(rewards, 0.0) == [], "ungraded is not earned"


async def test_work_that_the_tests_name_is_not_attacked_again_without_its_content(tmp_path: Path) -> None:
    task, work = write_task(tmp_path / "t"), {"/app/out.txt": False}
    rewards, ran = await attacked(task, {"import os": 1.0, "nothing": 1.0}, work)
    assert rewards == {"imported work": 1.0}
    assert len(ran) == 4


async def test_attacks_that_earn_only_together_are_named_together(tmp_path: Path) -> None:
    class OnlyTogether(FakeTrials):
        async def script(self, task: Path, kind: str, script: str, **how: Any) -> QualificationTrial:
            return QualificationTrial(float(kind == "task"))

    trials: Any = OnlyTogether({})
    found = await _attack(write_task(tmp_path / "t"), trials, 0.0, {})
    assert found == {f"{' and '.join(ATTACKS)} together": 1.0}


async def test_work_is_attacked_in_a_trial_of_its_own(tmp_path: Path) -> None:
    work = {"/app/out.txt": False, "/app/run": True}
    rewards, ran = await attacked(write_task(tmp_path / "t"), {"put /app/out.txt nothing": 1.0}, work)
    assert rewards == {HOLLOW: 1.0}
    assert ran == [("task", 0), ("attack", 0)]


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_hollow_work_has_the_names_of_the_work_alone(tmp_path: Path, shell: str) -> None:
    work = {f"{tmp_path}/a/out.txt": False, f"{tmp_path}/run": True, f"{tmp_path}/x.py": False}
    subprocess.run([shell, "-c", hollow_work(work)], check=True)
    assert (tmp_path / "a" / "out.txt").read_text() == "nothing\n"
    assert subprocess.run([tmp_path / "run"], check=True, capture_output=True).stdout == b""
    assert subprocess.run([sys.executable, tmp_path / "x.py"], check=False).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_every_attack_is_a_script_for_any_shell(tmp_path: Path, shell: str) -> None:
    files = {"tests/test_outputs.py": 'import sys\nsys.path.insert(0, "/srv/x y")\nfrom work import f\nimport json\n'}
    for task in (write_task(tmp_path / "t", test="./run.sh 'a b.py'\n", files=files), tmp_path / "without-tests"):
        work = {"/app/a b.txt": False, "/app/run": True, "/app/x.py": False}
        scripts = [script for group in scripts_of(task, work).values() for script in group.values()]
        for script in (*scripts, together(scripts)):
            done = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), script


def test_work_is_what_the_tests_run_or_import(tmp_path: Path) -> None:
    test = "curl -LsSf https://astral.sh/uv/install.sh | sh\npython3 /tests/check.py\nnode ../x/main.js && ./run a\n"
    check = 'import json, sys\nsys.path.append("/srv")\nfrom work import f\nimport helper\nrun("/app/tool.py")\n'
    files = {"tests/check.py": check, "tests/helper.py": ""}
    task = write_task(tmp_path / "t", test=test, files=files)
    written = [line.split()[1] for line in empty_work(task).splitlines() if line.startswith("put ")]
    assert written == ["../x/main.js", "./run", "/app/tool.py"]
    assert "chmod a+x ./run" in empty_work(task) and "chmod a+x /app/tool.py" not in empty_work(task)
    script = imported_work(task)
    assert "for n in work; do" in script and 'for d in "$PWD" /srv; do' in script


def test_what_scripts_fetch_is_noted_and_comments_are_not(tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", test="apt-get install -y curl\n# wget x\nuvx pytest\n")
    assert [one.detail for one in findings.fetches(task)] == ["its scripts call apt-get install, curl, uvx"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1\n", 1), ("0.5", 0.5), ('{"a": 0, "reward": 1}', 1), ('{"reward": 1.0.0}', 1), ('{"reward": 2e+1}', 20)],
)
def test_rewards_are_read_as_harbor_does(text: str, value: float) -> None:
    assert reward_of(text) == value


def test_attacks_read_the_tests_of_the_task(tmp_path: Path) -> None:
    test = 'if jq -e .ok /x && ! "$v"; then /opt/venv/bin/pytest; fi\nr=$(sqlite3 a | wc -l)\ncp /app/reward.txt /x\n'
    task = write_task(tmp_path / "t", test=test)
    assert "/app/reward.txt" in prewritten(task)
    solution = (task / "solution" / "solve.sh").read_bytes()
    assert f"-size {len(solution)}c" in searching(task)
    said = f"{hashlib.sha256(solution).hexdigest()}  /opt/x\n{'0' * 64}  /etc/passwd\n"
    assert readable(task, said) == ["solution/solve.sh as /opt/x"]


def test_a_cached_report_is_the_report_and_other_settings_are_asked_anew(tmp_path: Path) -> None:
    report = TaskReport("t", "/tasks/t", "d1", [Finding("flaky", Severity.ERROR, "x")], [1.0, None], 9, 0.0)
    Cache(tmp_path, {"n": 1}).put(report)
    found = Cache(tmp_path, {"n": 1}).get(Path("/elsewhere/u"), "d1")
    assert found is not None and found.cached and found.bad and (found.name, found.path) == ("u", "/elsewhere/u")
    assert (found.findings, found.oracle) == (report.findings, report.oracle)
    assert Cache(tmp_path, {"n": 2}).get(Path("/t"), "d1") is None
    assert Cache(tmp_path, {"n": 1}).get(Path("/t"), "d2") is None


def test_training_leaves_quarantined_tasks_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        write_task(tmp_path / name)
    digests = {task.name: task.digest for task in load_tasks(str(tmp_path))}
    write_quarantine(tmp_path, [Listed("a", digests["a"], "flaky:\n x"), Listed("b", "old", "y")], ["c"])
    assert [task.name for task in load_tasks(str(tmp_path))] == ["b", "c"]
    assert "task a is left out: quarantine.txt: flaky: x" in caplog.text
    assert "task b: quarantine.txt names an earlier version of it" in caplog.text
    assert write_quarantine(tmp_path, [], ["a"]) == 1 and set(read_quarantine(tmp_path)) == {"b"}
    (tmp_path / QUARANTINE_FILE).write_text("# by hand\nb - I said so\nc\na\n")
    with pytest.raises(UserError, match="no Harbor task"):
        load_tasks(str(tmp_path))
    assert write_quarantine(tmp_path, [], "abc") == 0 and not (tmp_path / QUARANTINE_FILE).exists()


def test_a_quarantined_task_may_have_any_name(tmp_path: Path) -> None:
    names = ["#c", "a b", "c", "d%20"]
    for number, name in enumerate(names):
        write_task(tmp_path / f"t{number}", head='schema_version = "1.4"\n').rename(tmp_path / name)
    bad = [Listed(task.name, task.digest, "flaky") for task in load_tasks(str(tmp_path)) if task.name != "c"]
    assert write_quarantine(tmp_path, bad, []) == 3
    assert [task.name for task in load_tasks(str(tmp_path))] == ["c"]
    assert write_quarantine(tmp_path, [], names) == 0


ELSEWHERE = "harbor.environments.docker.docker:DockerEnvironment"  # its images are not built before trials


@pytest.fixture
def own_level(caplog: pytest.LogCaptureFixture) -> None:
    """A check changes it for its process."""
    caplog.set_level(logging.NOTSET, logger="harbortrainer.harbor")


async def checked(tmp_path: Path, **given: Any) -> list[TaskReport]:
    """A check of a task that needs no trial: its Dockerfile copies what is not there."""
    task = tmp_path / "t"
    if not task.exists():
        write_task(task, dockerfile="FROM x\nCOPY gone /\n")
    return await check.qualify_all([task], CheckArgs(dirs=(str(task),), environment_type=ELSEWHERE, **given))


@pytest.mark.usefixtures("own_level")
@pytest.mark.parametrize("name", ["trial_timeout_sec", "slow_build_sec", "slow_trial_sec"])
async def test_a_limit_that_decides_findings_is_asked_anew(name: str, tmp_path: Path) -> None:
    limits: list[dict[str, Any]] = [{}, {}, {name: 7.0}, {name: 7.0}]
    cached = [report.cached for given in limits for report in await checked(tmp_path, **given)]
    assert cached == [False, True, False, True]


@pytest.mark.usefixtures("own_level")
async def test_what_ends_a_check_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object) -> TaskReport:
        raise EnvironmentFault("Docker is gone")

    with monkeypatch.context() as patch, pytest.raises(EnvironmentFault, match="Docker is gone"):
        patch.setattr(check, "qualify", lost)
        await checked(tmp_path)
