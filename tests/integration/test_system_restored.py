"""Policies that replace, shadow or hook what a verifier runs; and honest work on the same paths, which stays."""

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from harbortrainer.docker import layer
from harbortrainer.docker.cleaning import drain
from harbortrainer.docker.environment import PUT_BACK, DockerEngineEnvironment
from tests.support import system_attacks as attacks
from tests.support.docker_parts import a_run, let_processes_end, started, write_task

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = a_run("test-system")
AT_ONCE = 6


@pytest.fixture(autouse=True)
async def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    await drain()


def make_task(folder: Path, *, solve: str = "echo Hello > hello.txt\n") -> Path:
    """Wants /app/hello.txt to hold Hello."""
    files = {f"environment/{name}": text for name, text in attacks.FILES.items()}
    task = write_task(folder, dockerfile=attacks.DOCKERFILE, solve=solve, test=attacks.TEST, files=files)
    (task / "tests" / "test_outputs.py").write_text(attacks.TEST_OUTPUTS)
    (task / "tests" / "test_flask.py").write_text(attacks.TEST_FLASK)
    return task


async def verified(environment: DockerEngineEnvironment, task: Path, user: str, way: str) -> str:
    """The reward that the task's test writes."""
    await environment.upload_dir(task / "tests", "/tests")
    await environment.exec(f"bash /tests/test.sh {way} > /logs/verifier/out.txt 2>&1", user=user, timeout_sec=600)
    shown = await environment.exec("cat /logs/verifier/reward.txt", user="root")
    return (shown.stdout or "").strip()


async def outcome(task: Path, name: str, slots: asyncio.Semaphore) -> str:
    """What is wrong: the attack would not earn without restoration, earns with it, or is not named; "" = nothing."""
    attack = attacks.ATTACKS[name]
    async with slots, started(task, RUN) as environment:
        await environment.exec("mkdir -m 777 -p /logs/verifier", user="root")
        done = await environment.exec(attack.script, user=attack.user, timeout_sec=600)
        assert done.return_code == 0, (name, done.stderr)
        if await verified(environment, task, attack.user, attack.way) != "1":
            return "harmless"
        await environment.close_agent_phase(final=True)
        await environment.exec("rm -f /tmp/ran", user="root")
        if (reward := await verified(environment, task, attack.user, attack.way)) != "0":
            return f"earned {reward}"
        return "" if environment.put_back or attack.silent else "not named"


async def defended(folder: Path, names: Sequence[str]) -> None:
    """Each attack earns in the container as the policy leaves it, and nothing once the system was put back.

    Every other one on a task without a solution.
    """
    with_solution, without = make_task(folder / "solved"), make_task(folder / "unsolved")
    shutil.rmtree(without / "solution")
    slots = asyncio.Semaphore(AT_ONCE)
    tasks = itertools.cycle([with_solution, without])
    found = await asyncio.gather(*(outcome(task, name, slots) for task, name in zip(tasks, names, strict=False)))
    assert {name: wrong for name, wrong in zip(names, found, strict=True) if wrong} == {}


async def test_attacks_on_what_a_verifier_runs_earn_nothing(tmp_path: Path) -> None:
    await defended(tmp_path, [name for name in attacks.ATTACKS if name not in attacks.NIGHTLY])


@pytest.mark.nightly
async def test_more_attacks_on_what_a_verifier_runs_earn_nothing(tmp_path: Path) -> None:
    await defended(tmp_path, attacks.NIGHTLY)


async def test_start_up_files_of_programs_that_the_image_lacks_are_removed(tmp_path: Path) -> None:
    """Of both users, in one container; none of them may stay for a verifier that installs the program."""
    task = make_task(tmp_path / "files")
    (task / "tests" / "more.sh").write_text(attacks.RUNS_MORE)
    async with started(task, RUN) as environment:
        for user, files in (("root", attacks.ROOT_FILES), ("dev", attacks.USER_FILES)):
            script = "".join(f"mkdir -p $(dirname {file}); echo evil > {file}\n" for file in files.split())
            done = await environment.exec(f"cd ~; {script}", user=user)
            assert done.return_code == 0, done.stderr
        await environment.close_agent_phase(final=True)
        for user, files in (("root", attacks.ROOT_FILES), ("dev", attacks.USER_FILES)):
            left = await environment.exec(f"cd ~; for f in {' '.join(files.split())}; do ls -d $f; done", user=user)
            assert left.stdout is None, left.stdout
        assert len(environment.put_back) > 80


async def test_honest_settings_of_a_repository_stay(tmp_path: Path) -> None:
    task = make_task(tmp_path / "honest")
    async with started(task, RUN) as environment:
        work = "cd /app/repo; git config core.pager cat; git remote add origin /srv/x; git init -q /app/b"
        await environment.exec(work, user="root")
        await environment.close_agent_phase(final=True)
        assert environment.put_back == ()
        shown = await environment.exec("git -C /app/repo remote; git -C /app/repo config core.pager; ls -d /app/b/.git")
        assert (shown.stdout or "").split() == ["origin", "cat", "/app/b/.git"]


async def test_a_service_that_runs_jobs_of_users_runs_none_of_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_processes_end(monkeypatch)
    table = "/etc/cron.d/job"
    entry = '#!/bin/sh\n/usr/sbin/cron </dev/null >/dev/null 2>&1 &\nexec "$@"\n'
    cron = f"#!/bin/sh\nwhile :; do date +%s%N > /beat; [ -e {table} ] && sh {table}; sleep 0.1; done\n"
    dockerfile = attacks.BASE + (
        "COPY entry.sh cron /usr/sbin/\nRUN chmod +x /usr/sbin/entry.sh /usr/sbin/cron\nWORKDIR /app\n"
        'ENTRYPOINT ["/usr/sbin/entry.sh"]\n'
    )
    files = {"environment/entry.sh": entry, "environment/cron": cron}
    task = write_task(tmp_path / "cron", dockerfile=dockerfile, files=files)
    async with started(task, RUN, once="[ -s /beat ]") as environment:
        job = "while :; do date +%s%N > /ran; sleep 0.05; done"
        await environment.exec(f"mkdir -p /etc/cron.d; echo '{job}' > {table}; until [ -s /ran ]; do sleep 0.05; done")
        await environment.close_agent_phase(final=True)
        runs = "rm -f /ran /beat; until [ -s /beat ]; do sleep 0.05; done; sleep 0.3; ls /ran; pgrep -x cron | wc -l"
        assert ((await environment.exec(runs)).stdout or "").split() == ["1"]
        assert list(environment.put_back) == [table]


async def test_a_daemon_whose_files_cannot_be_read_restores_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only `docker diff` tells what has changed; a sample of the attacks."""
    monkeypatch.setattr(layer, "_may_see_all", lambda: False)
    task = make_task(tmp_path / "attacked")
    chosen = ["curl-replaced", "pytest-package-made-again", "folder-of-programs-by-a-link", "standard-module-beside"]
    found = await asyncio.gather(*(outcome(task, name, asyncio.Semaphore(AT_ONCE)) for name in chosen))
    assert found == [""] * len(chosen)


async def test_packages_that_the_solution_installs_stay_and_others_do_not(tmp_path: Path) -> None:
    """dpkg's records stay true, so that a verifier can install what was put back."""
    task = write_task(tmp_path / "packages", dockerfile=attacks.PACKAGES, solve="dpkg -i /packages/tiny.deb\n")
    async with started(task, RUN) as environment:
        done = await environment.exec("dpkg -i /packages/tiny.deb /packages/other.deb", user="root")
        assert done.return_code == 0, done.stderr
        await environment.close_agent_phase(final=True)
        assert "/usr/bin/other" in environment.put_back and "/usr/bin/tiny" not in environment.put_back
        shown = await environment.exec("tiny; dpkg -s tiny | grep -c 'ok installed'; dpkg -s other; ls /usr/bin/other")
        assert (shown.stdout or "").split() == ["packaged", "1"]
        again = await environment.exec("dpkg -i /packages/other.deb && other", user="root")
        assert (again.stdout or "").endswith("packaged\n"), again.stderr


async def test_what_the_solution_installs_too_is_kept(tmp_path: Path) -> None:
    task = make_task(tmp_path / "honest", solve=attacks.INSTALL.format(version="1.0", text="of-the-solution"))
    async with started(task, RUN) as environment:
        policy = attacks.INSTALL.format(version="1.2", text="of-the-policy")
        done = await environment.exec(f"{policy}\necho Hello > hello.txt\n", user="root", timeout_sec=600)
        assert done.return_code == 0, done.stderr
        await environment.close_agent_phase(final=True)
        assert await verified(environment, task, "root", "uvx") == "1"
        assert environment.put_back == ()
        shown = (await environment.exec(attacks.INSTALLED, user="root")).stdout or ""
        assert shown.split("\n")[:-1] == attacks.installed("1.2", "of-the-policy")


async def test_only_what_lies_outside_the_footprint_is_put_back_and_recorded(tmp_path: Path) -> None:
    task = make_task(tmp_path / "mixed", solve=attacks.INSTALL.format(version="1.0", text="of-the-solution"))
    async with started(task, RUN) as environment:
        extra = "echo x > /usr/local/bin/uvx; echo y > /usr/lib/python3/dist-packages/more.pth; rm /usr/bin/tac"
        await environment.exec(f"{attacks.INSTALL.format(version='1.0', text='same')}\n{extra}", user="root")
        await environment.close_agent_phase(final=True)
        assert await verified(environment, task, "root", "uvx") == "0"
        expected = ["/usr/bin/tac", "/usr/lib/python3/dist-packages/more.pth", "/usr/local/bin/uvx"]
        assert list(environment.put_back) == expected
        recorded = json.loads((environment.trial_paths.trial_dir / PUT_BACK).read_text())
        assert recorded == {"number": 3, "paths": expected}
        shown = (await environment.exec(attacks.INSTALLED, user="root")).stdout or ""
        assert shown.split("\n")[:-1] == attacks.installed("1.0", "same")


async def test_a_second_phase_is_restored_as_the_first(tmp_path: Path) -> None:
    task = make_task(tmp_path / "steps")
    async with started(task, RUN) as environment:
        for final in (False, True):
            await environment.exec("echo x > /usr/bin/tac; echo x > /usr/local/bin/git", user="root")
            await environment.close_agent_phase(final=final)
            shown = await environment.exec("tac --version | head -1 | cut -c1-3; ls /usr/local/bin/git", user="root")
            assert (shown.stdout or "").strip() == "tac"
            await environment.open_agent_phase()
        assert list(environment.put_back) == ["/usr/bin/tac", "/usr/local/bin/git"]


async def test_what_the_images_entrypoint_writes_is_kept(tmp_path: Path) -> None:
    entry = '#!/bin/sh\necho made > /usr/local/bin/made; echo made >> /etc/profile\nexec "$@"\n'
    dockerfile = (
        attacks.BASE + 'COPY entry.sh /entry.sh\nRUN chmod +x /entry.sh\nWORKDIR /app\nENTRYPOINT ["/entry.sh"]\n'
    )
    task = write_task(tmp_path / "entry", dockerfile=dockerfile, files={"environment/entry.sh": entry})
    async with started(task, RUN, once="grep -q made /etc/profile") as environment:
        await environment.exec("echo x > /usr/bin/tac", user="root")
        await environment.close_agent_phase(final=True)
        shown = await environment.exec("cat /usr/local/bin/made; tail -1 /etc/profile", user="root")
        assert (shown.stdout or "").split() == ["made", "made"]
        assert list(environment.put_back) == ["/usr/bin/tac"]
