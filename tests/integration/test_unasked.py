"""Policies that replace, shadow or hook what a verifier runs, in real trials; and honest work on the same paths."""

import asyncio
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.integrity import watch
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.qualify.trials import QualificationTrial
from harbortrainer.venues.harbor.grading import CAUSES
from tests.support import system_attacks as attacks
from tests.support import trial_parts
from tests.support.docker_parts import write_task
from tests.support.plain_container import both_ways, product_trial, product_trials
from tests.support.tiers import few
from tests.support.verified_task import attacked_task

pytestmark = pytest.mark.usefixtures("docker_ready")
AT_ONCE = 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def outcome(folder: Path, name: str, slots: asyncio.Semaphore, *, solved: bool) -> str:
    """What is wrong; "" = the product does not pay the attack."""
    attack = attacks.ATTACKS[name]
    task = attacked_task(folder / name / "task", way=attack.way, user=attack.user)
    if not solved:
        shutil.rmtree(task / "solution")
    async with slots:
        trial = await product_trial(task, attack.script)
    return f"earned {trial.reward}" if trial.reward else ""


async def defended(folder: Path, names: Sequence[str]) -> None:
    """Every other one on a task without a solution."""
    slots = asyncio.Semaphore(AT_ONCE)
    kinds = itertools.cycle([True, False])
    trials = (outcome(folder, name, slots, solved=solved) for name, solved in zip(names, kinds, strict=False))
    found = await asyncio.gather(*trials)
    assert {name: wrong for name, wrong in zip(names, found, strict=True) if wrong} == {}


@pytest.mark.parametrize("names", few(attacks.ATTACKS, 6))
async def test_attacks_on_what_a_verifier_runs_earn_nothing(tmp_path: Path, names: list[str]) -> None:
    await defended(tmp_path, names)


async def work(folder: Path, script: str, **task: str) -> QualificationTrial:
    return await product_trial(attacked_task(folder / "task", **{"way": "module", **task}), script)


def recorded(folder: Path) -> dict[str, Any]:
    """The causes that the trial's folder names."""
    (file,) = (folder / "trials").glob(f"*/{CAUSES}")
    return json.loads(file.read_text())


async def test_a_hook_earns_what_the_work_alone_is_worth(tmp_path: Path) -> None:
    """Also in a container that is too large for a copy."""
    hook = f"echo 'import os; os._exit(0)' > {attacks.SITE}/hook.pth"
    alone = {"alone": hook, "alone-large": f"truncate -s 9G /app/hole\n{hook}"}
    scripts = alone | {f"beside-{name}": f"{script}; echo Hello > /app/hello.txt" for name, script in alone.items()}
    cases = [(attacked_task(tmp_path / name / "task", way="module"), script) for name, script in scripts.items()]
    assert [trial.reward for trial in await product_trials(cases)] == [0, 0, 1, 1]
    for name in alone:
        known = recorded(tmp_path / name)
        assert known["hooked"] and known["causes"] == [f"{attacks.SITE}/hook.pth"]


async def test_what_the_solution_installs_too_is_asked_for(tmp_path: Path) -> None:
    solve = attacks.INSTALL.format(version="1.0", text="of-the-solution") + "echo Hello > hello.txt\n"
    policy = attacks.INSTALL.format(version="1.0", text="of-the-policy") + "echo Hello > /app/hello.txt\n"
    assert (await work(tmp_path, policy, solve=solve)).reward == 1


@pytest.mark.nightly
async def test_a_reward_that_needs_none_of_the_work_is_no_reward(tmp_path: Path) -> None:
    """A link that verification follows has no open of its own."""
    task = attacked_task(tmp_path / "task", way="awk")
    script = "echo Hello > /app/hello.txt; ln -sf /usr/bin/true /usr/local/bin/awk"
    plain, trial = await both_ways(task, script)
    assert (plain, trial.reward) == (1, 0)
    assert recorded(tmp_path)["hooked"]


GREETS = "printf '#!/bin/sh\\necho hi\\n' > {path}; chmod +x {path}; echo Hello > /app/hello.txt\n"


@pytest.mark.nightly
async def test_a_reward_that_needs_the_work_and_more_is_no_reward_and_no_reward_of_0(tmp_path: Path) -> None:
    """A program of the solution's name, elsewhere, is work."""
    test = """PATH=$PATH:/opt
if grep -q Hello /app/hello.txt && [ "$(greet || hey)" = hi ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
    solve = GREETS.format(path="/usr/bin/greet")

    async def tried(number: int, path: str) -> tuple[float | None, QualificationTrial]:
        folder = tmp_path / str(number) / "task"
        task = write_task(folder, dockerfile=f"{attacks.BASE}WORKDIR /app\n", solve=solve, test=test)
        return await both_ways(task, GREETS.format(path=path))

    paths = ("/usr/bin/greet", "/opt/greet", "/usr/local/bin/hey")
    found = await asyncio.gather(*(tried(*one) for one in enumerate(paths)))
    assert [(plain, trial.reward) for plain, trial in found] == [(1, 1), (1, 1), (1, None)], found
    assert paths[-1] in found[-1][1].fault


async def test_honest_ways_that_no_solution_tells_are_paid(tmp_path: Path) -> None:
    """Other settings of login shells than the solution's were graded 0; changed files of the image were `unasked`."""
    graded = "&& r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
    login = f"""[ "$(bash -lc 'echo $REGION')" = eu ] {graded}"""
    replaced = f"[ $(grep -rl bar /app/data | wc -l) = 40 ] && ! grep -rq foo /app/data {graded}"
    data = "RUN mkdir -p /app/data && for i in $(seq 40); do echo $i foo > /app/data/$i.txt; done\nWORKDIR /app\n"
    tasks = {
        "login": ("WORKDIR /app\n", login, "In login shells REGION shall be eu."),
        "replaced": (data, replaced, "Replace foo by bar in all files below /app/data."),
    }
    made = {
        name: write_task(
            tmp_path / name / "task",
            dockerfile=f"{attacks.BASE}{more}",
            solve="echo 'export REGION=eu' > /etc/profile.d/site.sh\n",
            test=test,
            files={"instruction.md": text},
        )
        for name, (more, test, text) in tasks.items()
    }
    shutil.rmtree(made["replaced"] / "solution")
    scripts = (
        "echo 'export REGION=eu' >> /etc/profile",
        "cd /app/data; for one in *.txt; do sed s/foo/bar/ $one > $one.new && mv $one.new $one; done",
    )
    trials = await product_trials(zip(made.values(), scripts, strict=True))
    assert [trial.reward for trial in trials] == [1, 1], trials


@pytest.mark.nightly
async def test_a_solution_that_takes_longer_than_all_verifications_is_waited_for(tmp_path: Path) -> None:
    """The first trial that depends on something unnamed runs it, within its own verification."""
    greets = GREETS.format(path="/usr/bin/greet")
    test = "grep -q Hello /app/hello.txt && greet && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
    task = trial_parts.make_task(tmp_path, test=test)
    file = Path(task.ref) / "task.toml"
    file.write_text(re.sub(r"(\[verifier\]\ntimeout_sec = )[\d.]+", r"\g<1>3.0", file.read_text()))
    (Path(task.ref) / "solution").mkdir()
    (Path(task.ref) / "solution" / "solve.sh").write_text(f"#!/bin/bash\nsleep 16\n{greets}")
    answers = [trial_parts.answer(greets), *[trial_parts.answer(complete=True)] * 2]
    host, _ = trial_parts.local_host(answers)
    ended = await host.run(trial_parts.request(task, tmp_path))
    assert (ended.outcome, ended.reward) == (Outcome.COMPLETED, 1.0), ended.detail


async def test_the_terminal_of_the_agent_rests_during_verification(tmp_path: Path) -> None:
    task = trial_parts.make_task(tmp_path, test=f"sleep 1\n{trial_parts.TEST_SH}")
    host, _ = trial_parts.local_host(trial_parts.SOLVE)
    ended = await host.run(trial_parts.request(task, tmp_path))
    assert (ended.outcome, ended.reward) == (Outcome.COMPLETED, 1.0), ended.detail
    assert not [*tmp_path.rglob(CAUSES)]


SERVES = "cd /app; (setsid python3 -m http.server {port} </dev/null >/dev/null 2>&1 &)\n"
ASKS = """python3 - <<'P'
import time, urllib.request
for _ in range(50):
    try:
        found = urllib.request.urlopen("http://127.0.0.1:8123/hello.txt").read()
        break
    except OSError:
        time.sleep(0.1)
else:
    found = b""
open("/logs/verifier/reward.txt", "w").write(str(int(found == b"Hello\\n")))
P
"""


async def test_a_service_that_the_task_asks_for_lives_on(tmp_path: Path) -> None:
    """With a solution, and without one."""
    hello = "echo Hello > /app/hello.txt\n"
    serves = hello + SERVES.format(port=8123)
    solved, unsolved = (
        write_task(tmp_path / name / "task", dockerfile=f"{attacks.BASE}WORKDIR /app\n", solve=serves, test=ASKS)
        for name in ("solved", "unsolved")
    )
    for task in (solved, unsolved):
        (task / "instruction.md").write_text("Serve /app over HTTP on port 8123; hello.txt says Hello.\n")
    shutil.rmtree(unsolved / "solution")
    trials = await product_trials((task, script) for task in (solved, unsolved) for script in (serves, hello))
    assert [trial.reward for trial in trials] == [1, 0, 1, 0]


@pytest.mark.nightly
async def test_a_service_that_the_task_asks_for_lives_on_while_unasked_changes_are_undone(tmp_path: Path) -> None:
    """The further verification is in the same container: the service runs nowhere else. Other processes end."""
    hello = "echo Hello > /app/hello.txt\n"
    serves = hello + SERVES.format(port=8123)
    task = write_task(tmp_path / "task", dockerfile=f"{attacks.BASE}WORKDIR /app\n", solve=serves, test=ASKS)
    loop = "(setsid sh -c 'touch /tmp/begun; while :; do :; done' </dev/null >/dev/null 2>&1 &)\n"
    loop += "until [ -e /tmp/begun ]; do sleep 0.1; done\n"  # it is called setsid before
    unused = f"echo x > {attacks.SITE}/unused.pth\n"
    assert (await product_trial(task, serves + loop + unused)).reward == 1
    known = recorded(tmp_path)
    assert known["without"] == 1 and "process sh" in known["causes"]


@pytest.mark.nightly
async def test_what_a_solutions_service_writes_as_it_starts_is_asked_for(tmp_path: Path) -> None:
    """The solution ends before."""
    starts = f"for i in {{1..400000}}; do :; done; echo x > /opt/state; {SERVES.format(port=8123)}"
    task = write_task(
        tmp_path / "task",
        dockerfile=f"{attacks.BASE}WORKDIR /app\n",
        solve=f"echo Hello > /app/hello.txt; (setsid bash -c '{starts}' </dev/null >/dev/null 2>&1 &)\n",
        test=f"cat /opt/state || exit\n{ASKS}",
    )
    (task / "instruction.md").write_text("Serve /app over HTTP on port 8123; hello.txt says Hello.\n")
    serves = f"echo Hello > /app/hello.txt; echo y > /opt/state\n{SERVES.format(port=8123)}"
    assert (await product_trial(task, serves)).reward == 1
    assert not [*tmp_path.rglob(CAUSES)]


async def test_where_nothing_can_be_watched_every_unasked_change_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MODULE", "harbortrainer.none")
    monkeypatch.setattr(watch, "_watchers", {})
    monkeypatch.setattr(watch, "_failed", {})
    trial = await work(tmp_path, "echo x > /usr/local/bin/unused; echo Hello > /app/hello.txt")
    assert trial.reward == 1
    assert recorded(tmp_path)["causes"] == ["/usr/local/bin/unused"]


HONEST = {
    "accounts": (
        "Make a user `courier` in the group `crew`.\n",
        "groupadd crew; useradd -G crew courier",
        "id -nG courier | grep -qw crew",
    ),
    "rights": (
        "Give what is below /srv/given the mode 640.\n",
        "chmod 640 /srv/given/*",
        'cat /srv/given/*; [ "$(stat -c %a /srv/given/one)" = 640 ]',
    ),
    "tests": (
        "Sort all lists below /srv/given.\n",
        "sort -o /srv/given/one.txt /srv/given/one.txt",
        "sort -c /srv/given/one.txt",
    ),
    "made": ("Move /srv/given to /srv/made.\n", "mv /srv/given /srv/made", "grep -qx 1 /srv/made/one"),
    "command": (
        "Make the command `two`, which prints 2.\n",
        "printf '#!/bin/sh\\necho 2\\n' > /usr/local/bin/two; chmod +x /usr/local/bin/two",
        "[ $(two) = 2 ]",
    ),
    "folder": ("Remove the working directory.\n", "cd /; rm -r /app", "[ ! -e /app ]"),
}
GIVEN = "RUN mkdir /app /srv/given && echo 1 > /srv/given/one && printf '2\\n1\\n' > /srv/given/one.txt\n"


@pytest.mark.nightly
async def test_work_that_only_the_tests_tell_from_a_hook_is_paid_without_a_solution(tmp_path: Path) -> None:
    """Verification opens it before anything that the instruction names."""
    cases = []
    for name, (instruction, script, test) in HONEST.items():
        task = write_task(
            tmp_path / name / "task",
            dockerfile=f"{attacks.BASE}{GIVEN}WORKDIR /app\n",
            test=f"cd /; {test} && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n",
            files={"instruction.md": instruction},
        )
        shutil.rmtree(task / "solution")
        cases += [(task, "true"), (task, script)]
    assert [trial.reward for trial in await product_trials(cases)] == [0, 1] * len(HONEST)


@pytest.mark.nightly
async def test_settings_of_what_runs_the_tests_are_a_cause_although_the_tests_name_them(tmp_path: Path) -> None:
    task = attacked_task(tmp_path / "task", way="module")
    shutil.rmtree(task / "solution")
    test = task / "tests" / "test.sh"
    test.write_text(test.read_text().replace("cd /app\n", "cd /app\n[ ! -e pytest.ini ] || cat pytest.ini\n", 1))
    hook = "echo 'addopts = -p hook' > pytest.ini; echo 'import os; os._exit(0)' > hook.py"
    plain, trial = await both_ways(task, f"cd /app; {hook}")
    assert plain == 1 and not trial.reward and "/app/hook.py" in (trial.fault or recorded(tmp_path)["causes"])
