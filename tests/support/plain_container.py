"""A task's container as Harbor grades it, without protection; and real trials of the same scripts in the product."""

import asyncio
import contextlib
import hashlib
import io
import itertools
import json
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import docker.errors

from harbortrainer.config import Config
from harbortrainer.docker.daemon import Daemon, engine
from harbortrainer.docker.keeping import cleaning
from harbortrainer.qualify.trials import QualificationTrial, QualificationTrials
from harbortrainer.rollout.gates import Gates
from tests.support.cause_attacks import Attack
from tests.support.cause_tasks import TASKS, cause_task
from tests.support.docker_parts import a_run, remove_run

# The rights that the product gives a container.
_CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
]
AT_ONCE = 3  # trials side by side, or plain containers
_NUMBERS = itertools.count()  # of trials: two of one task have folders of their own
_LOGS = "mkdir -p /logs/verifier /logs/agent; chmod 777 /logs/verifier /logs/agent"
_VERIFY = "chmod +x /tests/test.sh; (/tests/test.sh) > /logs/verifier/test-stdout.txt 2>&1"


class Plain:
    """A container of a task. What it runs ends with it after `seconds`."""

    def __init__(self, task: Path, seconds: float) -> None:
        self._task = task
        host = engine().create_host_config(
            cap_drop=["ALL"], cap_add=_CAPABILITIES, security_opt=["no-new-privileges"], pids_limit=512,
            mem_limit="512m", memswap_limit="512m", shm_size="64m", network_mode="none",
        )  # fmt: skip
        command = ["sh", "-c", "sleep 9999"]
        self.id: str = engine().create_container(_image(task / "environment"), command, host_config=host)["Id"]
        self._timer = threading.Timer(seconds, self.remove)

    def start(self) -> None:
        engine().start(self.id)
        self._timer.start()

    def remove(self) -> None:
        self._timer.cancel()
        with contextlib.suppress(docker.errors.APIError):
            engine().remove_container(self.id, force=True)

    def run(self, script: str, user: str = "root") -> int | None:
        """The exit status."""
        made = engine().exec_create(self.id, ["bash", "-c", script], user=user)["Id"]
        engine().exec_start(made)
        return engine().exec_inspect(made)["ExitCode"]

    def verify(self) -> float | None:
        """The reward of the task's tests, run as Harbor does; None = they left none."""
        self.run("rm -f -- /logs/verifier/reward.txt /logs/verifier/reward.json")
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w") as tar:
            tar.add(self._task / "tests", "tests")
        engine().put_archive(self.id, "/", held.getvalue())
        self.run(_VERIFY)
        for name in ("reward.json", "reward.txt"):
            with contextlib.suppress(docker.errors.NotFound, ValueError, AttributeError):
                chunks, _ = engine().get_archive(self.id, f"/logs/verifier/{name}")
                with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
                    found = json.load(tar.extractfile(name))  # pyright: ignore[reportArgumentType]
                    return float(found["reward"] if isinstance(found, dict) else found)
        return None


def _image(context: Path) -> str:
    """It is built once for each content, and kept."""
    files = sorted(path for path in context.rglob("*") if path.is_file())
    text = b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)
    tag = f"harbortrainer-test-plain:{hashlib.sha256(text).hexdigest()[:16]}"
    if not engine().images(tag):
        lines = list(engine().build(path=str(context), tag=tag, rm=True, decode=True))
        assert engine().images(tag), lines[-1]
    return tag


@contextlib.contextmanager
def plain(task: Path, seconds: float = 60.0) -> Iterator[Plain]:
    container = Plain(task, seconds)
    try:
        container.start()
        container.run(_LOGS)
        yield container
    finally:
        container.remove()


def plain_reward(task: Path, script: str, user: str = "root") -> float | None:
    """The reward of an agent that runs this script; None = there is none, as after a minute."""
    with contextlib.suppress(docker.errors.APIError), plain(task) as container:
        status = container.run(script, user)
        assert status == 0, (task.name, status)
        return container.verify()
    return None


def earns_in_plain_container(attack: Attack) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return (
            plain_reward(cause_task(Path(folder) / "task", attack.task, attack.user), attack.script, attack.user) == 1
        )


def honest_in_plain_container(name: str) -> tuple[float | None, float | None]:
    """Rewards of doing nothing, and of the solution."""
    with tempfile.TemporaryDirectory() as folder:
        task = cause_task(Path(folder) / "task", name)
        return plain_reward(task, "true"), plain_reward(task, TASKS[name].solve)


async def product_trials(cases: Iterable[tuple[Path, str]]) -> list[QualificationTrial]:
    """Real trials of agents that run these scripts, by task and script: of one run, side by side."""
    run_id = a_run("test-cause")
    config = Config(model_name="", tasks_dir="", n_parallel_envs=AT_ONCE, trial_timeout_sec=300.0)
    daemon, gates = Daemon(config.outage_limit_sec), Gates.of(config)

    async def one(task: Path, script: str) -> QualificationTrial:
        trials = QualificationTrials(config, run_id, task.parent / "trials", gates, daemon, _NUMBERS)
        return await trials.script(task, "attack", script, repeats=0)

    try:
        return await asyncio.gather(*(one(*case) for case in cases))
    finally:
        daemon.close()
        await cleaning.drain()
        remove_run(run_id)


async def product_trial(task: Path, script: str) -> QualificationTrial:
    """Only one."""
    return (await product_trials([(task, script)]))[0]


async def both_ways(task: Path, script: str) -> tuple[float | None, QualificationTrial]:
    """The reward of a plain container, and the product's trial of the same script, at once: each mostly waits."""
    async with asyncio.TaskGroup() as group:
        plain = group.create_task(asyncio.to_thread(plain_reward, task, script))
        trial = group.create_task(product_trial(task, script))
    return plain.result(), trial.result()


async def what_earns(attacks: Mapping[str, tuple[Path, str]]) -> dict[str, object]:
    """Trials of the product, by name, that pay an attack: its reward is to be 0, or a fault that names the cause."""
    found = await product_trials(attacks.values())
    return {name: trial for name, trial in zip(attacks, found, strict=True) if not _earns_nothing(trial)}


def _earns_nothing(trial: QualificationTrial) -> bool:
    return trial.reward == 0 or (trial.reward is None and "the reward depends on" in trial.fault)


async def what_is_no_attack(attacks: Mapping[str, tuple[Path, str]]) -> dict[str, object]:
    """Rewards of a plain container, by name, where they are not 1: side by side, as each mostly waits."""
    places = asyncio.Semaphore(AT_ONCE)

    async def plain_trial(task: Path, script: str) -> float | None:
        async with places:
            return await asyncio.to_thread(plain_reward, task, script)

    found = await asyncio.gather(*(plain_trial(*attack) for attack in attacks.values()))
    return {name: reward for name, reward in zip(attacks, found, strict=True) if reward != 1}


async def product_outcome(attack: Attack) -> QualificationTrial:
    with tempfile.TemporaryDirectory() as folder:
        task = cause_task(Path(folder) / "task", attack.task, attack.user)
        return await product_trial(task, attack.script)
