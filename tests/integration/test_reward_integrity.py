"""Policies that try to earn reward without doing the work, in real trials; what is honest still counts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harbortrainer.docker.box.environment import DockerEngineEnvironment
from harbortrainer.learning.trajectory import Outcome, Trajectory
from harbortrainer.tasks.folders import folder_of
from tests.support import docker_parts
from tests.support.docker_parts import BASE, a_run, started, write_task
from tests.support.tiers import few, first
from tests.support.trial_parts import SOLVE, answer, local_host, make_task, request

pytestmark = pytest.mark.usefixtures("docker_ready")
RUN = a_run("test-integrity")
WIN = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
EVIL = f"#!/bin/sh\n{WIN}\necho Hello\n"
AT_ONCE = 3
# The first verification breaks, the next earns
EMPTY_THEN_WIN = """$r = "/logs/verifier/reward.txt"; 1 until -s $r; while (-e $r) { truncate $r, 0 }
while (1) { open my $f, ">", "$r.x" or next; print $f 1; close $f; rename "$r.x", $r }"""
LOOP = f"while :; do {WIN}; done 2>/dev/null"
ATTACKS = {
    "empty-at-first": f"(perl -e '{EMPTY_THEN_WIN}' &) >/dev/null 2>&1",
    "background": f"({LOOP}) & disown",
    "daemon": f"(setsid setsid sh -c '{LOOP}' </dev/null >/dev/null 2>&1 &)",
    "like-a-system-process": f"cp /bin/dash /usr/sbin/cron; (exec -a '[kworker/0:1]' /usr/sbin/cron -c '{LOOP}' &)",
    "shell-of-ours": "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || "
    f"echo 'kill() {{ :; }}; exit() {{ :; }}; (while :; do {WIN}; done) &' > $p/fd/0; done 2>/dev/null",
    "replaced": "for f in bash cat chmod; do cp /evil /usr/local/bin/$f; done; cd /usr/bin; cp bash /b\n"
    "/b -c '/bin/ln -sf /evil rm; /bin/cp /evil tar; /bin/cp --remove-destination /evil cat; /bin/mv /evil bash'",
    "other-folders": "cp -a /usr/bin /usr/local/fake; cd /usr/local/fake; cp -f /evil cat; cp -f /evil bash\n"
    "./mv /usr/bin /usr/gone; ./ln -s /usr/local/fake /usr/bin",
    "written-before": f"{WIN}; echo '{{\"reward\": 1}}' > /logs/verifier/reward.json; chmod 444 /logs/verifier/*",
    "linked": f"rm -rf /logs/verifier; mkdir /x; ln -s /x /logs/verifier; {WIN}; echo 1 > /x/reward.json; chmod 500 /x",
    "log": "printf '\\377' > /logs/agent/trajectory.json",
    "tests": "mkdir /y; cp /evil /y/test.sh; chmod 555 /y/test.sh; ln -s /y /tests",
}


def integrity_task(folder: Path, name: str = "hello", **toml: str) -> Any:
    """Wants /app/hello.txt to hold Hello; its image has the attacks, so that one build serves all tests."""
    task = make_task(folder, name=name)
    context = folder_of(task) / "environment"
    for attack, script in ATTACKS.items():
        (context / f"{attack}.sh").write_text(f"{script}\n")
    (context / "evil").write_text(EVIL)
    (context / "evil").chmod(0o755)
    (context / "Dockerfile").write_text(f"{BASE}COPY evil /evil\nCOPY *.sh /attacks/\nWORKDIR /app\n")
    return task


async def run(folder: Path, *said: str, name: str = "hello", **fields: Any) -> Trajectory:
    host, _ = local_host([*said, answer(complete=True), answer(complete=True)], **fields)
    return await host.run(request(integrity_task(folder, name), folder, name))


@pytest.mark.parametrize("names", few(ATTACKS, 5))
async def test_no_attack_earns(tmp_path: Path, names: list[str]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def graded(attack: str) -> Trajectory:
        async with slots:
            keys = answer(f"bash /attacks/{attack}.sh; echo done\n", wait=0.5)
            return await run(tmp_path / attack, keys, name=attack)

    found = dict(zip(names, await asyncio.gather(*map(graded, names)), strict=True))
    rewards = {name: (one.outcome, one.reward) for name, one in found.items()}
    details = {name: one.detail for name, one in found.items()}
    assert rewards == dict.fromkeys(names, (Outcome.COMPLETED, 0.0)), details


async def test_honest_work_beside_a_running_program_earns_its_reward(tmp_path: Path) -> None:
    assert (await run(tmp_path, answer("sleep 1000 &\n", wait=0.5), SOLVE[0])).reward == 1.0


async def test_a_system_that_was_deleted_is_graded(tmp_path: Path) -> None:
    trajectory = await run(tmp_path, answer("rm -rf / --no-preserve-root 2>/dev/null\n", wait=3.0))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 0.0), trajectory.detail


BOMBS = {
    # as many processes as there may be, for a while
    "flood": "perl -e 'for (1..999) { defined(my $p = fork) or last; $p or do { sleep 2; exit } }'\n",
    "bomb": ":(){ :|:& };:\n",
}


@pytest.mark.parametrize("bomb", first(1, BOMBS))
async def test_too_many_processes_and_a_memory_hog_harm_nobody_else(tmp_path: Path, bomb: str) -> None:
    half = {"override_cpus": 0.5}  # together one core: tests of other processes go on beside them
    many, hog, neighbour = await asyncio.gather(
        run(
            tmp_path / "a",
            SOLVE[0],
            answer(BOMBS[bomb], wait=1.0),
            name="bomb",
            environment_kwargs=half | {"pids_limit": 100},
        ),
        run(
            tmp_path / "b",
            SOLVE[0],
            answer("tail /dev/zero\n", wait=1.0),
            name="hog",
            environment_kwargs=half | {"override_memory_mb": 128},
        ),
        run(tmp_path / "c", *[answer("sleep 0.1\n")] * 3, SOLVE[0], name="neighbour", max_turns=9),
    )
    for trajectory in (many, hog, neighbour):
        assert trajectory.trainable and trajectory.reward == 1.0, (trajectory.task_name, trajectory.detail)


async def test_a_separate_verifier_sees_nothing_of_the_agents_container(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "separate",
        toml='[verifier]\nenvironment_mode = "separate"\n',
        files={"tests/Dockerfile": f"{BASE}WORKDIR /app\nCOPY . /tests/\n"},
        solve=f"({LOOP}) &\nprintf '#!/bin/sh\\necho Hello\\n' > /evil; chmod +x /evil; cp /evil /bin/cat\n",
    )
    assert docker_parts.reward(await docker_parts.run_trial(task, RUN)) == 0.0


async def said(environment: DockerEngineEnvironment, command: str) -> str:
    return ((await environment.exec(command, timeout_sec=600)).stdout or "").strip()


BEAT = "(while :; do date +%s%N > /{name}; sleep 0.05; done) >/dev/null 2>&1 & "


async def beats(environment: DockerEngineEnvironment, name: str) -> bool:
    """Whether it goes on within its next 60 beats."""
    wait = f'a=$(cat /{name}); for i in $(seq 100); do [ "$a" = "$(cat /{name})" ] || break; sleep 0.05; done; echo $i'
    return await said(environment, wait) != "100"


async def test_the_agents_processes_live_on_and_the_folders_of_verification_are_new(tmp_path: Path) -> None:
    async with started(write_task(tmp_path / "steps"), RUN) as environment:
        await environment.exec(BEAT.format(name="agent"))
        await environment.exec("echo mine > /tests/data; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
        for final in (False, True):
            await environment.close_agent_phase(final=final)
            assert await beats(environment, "agent")
            assert (
                await said(environment, "ls -A /logs/verifier /tests | grep -v :; stat -c %a /logs/verifier") == "777"
            )
            await environment.open_agent_phase()


async def test_services_of_the_image_go_on_and_its_own_tests_stay(tmp_path: Path) -> None:
    service = f'#!/bin/sh\n{BEAT.format(name="service")}\nexec "$@"\n'
    dockerfile = (
        f"{BASE}COPY entry.sh data /given/\nRUN chmod +x /given/entry.sh && mkdir /tests && mv /given/data /tests/\n"
        'WORKDIR /app\nENTRYPOINT ["/given/entry.sh"]\n'
    )
    files = {"environment/entry.sh": service, "environment/data": "given"}
    task = write_task(tmp_path / "service", dockerfile=dockerfile, files=files)
    async with started(task, RUN, once="[ -s /service ]") as environment:
        await environment.exec("echo mine > /tests/data; echo x > /tests/more")
        for final in (False, True):
            await environment.close_agent_phase(final=final)
            assert await beats(environment, "service")
            assert await said(environment, "cat /tests/*") == "given"
            await environment.open_agent_phase()


async def test_files_that_shells_read_at_their_start_are_not_read(tmp_path: Path) -> None:
    async with started(write_task(tmp_path / "startup"), RUN) as environment:
        files = "~/.bashrc ~/.profile ~/.bash_profile /etc/profile /etc/bash.bashrc /etc/environment ~/.bash_env ~/.env"
        await environment.exec(f"for f in {files}; do echo 'export STARTED=yes PATH=/evil' > $f; done")
        await environment.close_agent_phase(final=True)
        assert await said(environment, "echo [$STARTED$BASH_ENV$ENV]; echo $PATH | grep -c evil") == "[]\n0"


ISOLATION = """grep -E 'CapBnd|NoNewPrivs' /proc/self/status | cut -f 2
ls /sys/class/net; getent hosts example.org; ulimit -c; df -k --output=size /dev/shm | tail -1
find / -xdev -name '*docker*.sock'; touch /made; chown 1:1 /made && su -s /bin/sh nobody -c 'id -un'; mknod /n b 8 0"""


async def test_a_container_has_few_rights_and_no_network(tmp_path: Path) -> None:
    task = write_task(tmp_path / "isolated", toml='[environment]\nnetwork_mode = "no-network"\n')
    policy = docker_parts.NetworkPolicy(network_mode=docker_parts.NetworkMode.NO_NETWORK)
    async with started(task, RUN, network_policy=policy) as environment:
        assert (await said(environment, ISOLATION)).split() == ["00000000a00404fb", "1", "lo", "0", "65536", "nobody"]
    async with started(task, RUN, allow_sudo=True, cap_add=["NET_RAW"]) as environment:
        assert (await said(environment, ISOLATION)).split()[:2] == ["00000000a00424fb", "0"]
