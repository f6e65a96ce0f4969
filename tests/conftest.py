"""Real parts for tests against live servers: tiny policy, self-hosted server, Docker engine. None is ever skipped."""

import contextlib
import gc
import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.parts import chosen

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported; no test may reach out
logging.getLogger("tinker").addHandler(logging.NullHandler())  # its clients outlive the server of their group
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests and what they start heed Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
MODEL = Path("models/quickstart")  # as a user names it: the server serves it under this name
MEMORY = Path("/dev/shm")
MEMORY_MIN_BYTES = 2 * 1024**3  # free; containers often have 64 MiB, and then the tests work on the disk
# Real clients (tinker SDK, docker-py, wandb) leave sockets to the garbage collector; Harbor calls what is deprecated.
REAL_CLIENTS = (
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore:DEPRECATED. TrainingClient.load_state:FutureWarning",  # the request is part of the API that is tested
    "error::DeprecationWarning:(src|scripts|tests)",
)
DAEMON_WIDE = (
    "another_user",
    *("train", "train_refused", "budget", "server_loss", "evaluate", "evaluate_oracle", "docker_leaks"),
    *("task_check", "task_build", "task_attacks", "trial_isolation", "off_policy_run", "vllm_run"),
    *("hosts", "wheel"),
)
ENGINE = (
    *("server_passes", "server_memory", "server_hybrid", "server_start", "server_turns", "server_rows"),
    "server_rehearsal",
)
OWN_DOCKER = ("image_window", "image_supply", "docker_outage")
LONG_GROUPS = ("server", "daemon", "engine")
SLOW = (  # the longest first; what compiles and what waits for containers in turns
    *("server_upkeep", "trial_outcomes", "unasked", "image_window", "image_supply", "docker_outage"),
    *("server_scripts", "void_attacks", "agent_endings", "watch", "terminal_turn", "root_folder"),
    *("docker_environment", "docker_shell", "docker_disk", "reward_integrity", "base_models", "wandb"),
    *("evaluate_endpoint", "tampering_attacks", "faults_replaced", "quiet_attacks", "task_shapes", "server_vllm"),
)
LONGEST = 12  # groups that the summary names
FIRST_PORT, PORTS_EACH = 21_000, 1000  # of the tests' servers, and for each process of the tests
_PORTS = itertools.count(os.getpid() % PORTS_EACH)  # another run of the tests beside this one begins elsewhere
BASE_IMAGE = "harbortrainer/base:bookworm"
SMALL_SERVER = {"MAX_LORA_ADAPTERS": "8", "MAX_LORA_RANK": "16", "SESSION_TIMEOUT": "30"}
SMALL_SERVER |= {"SAMPLE_MAX_NUM_SEQUENCES": "8"}  # every wave is filled up to it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--since", metavar="COMMIT", help="leave out tests of parts without a change since")


def pytest_configure() -> None:
    """Tests write to memory where there is enough of it: a promise kept through fsync costs a disk's time."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_MIN_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage collection while tests are collected, when the heap only grows. None walks through modules later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """What real clients leave to the garbage collector goes here: later, a warning would be an error without a test."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of the published server are left to the night."""
    if item.path.parent.name != "unit":
        item.add_marker(pytest.mark.filterwarnings(*REAL_CLIENTS))
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if "stock_url" in {*getattr(item, "fixturenames", ()), *map(str, parameters.values())}:
        item.add_marker(pytest.mark.nightly)


class Groups(LoadScopeScheduling):
    """A group of files runs in one process. (pytest-xdist's own mark for that does nothing under pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.split("::")[0])


@cache
def _group(file: str) -> str:
    """`daemon`: files that clean up the whole daemon, and what another process's test looks at with it.

    Every start and end of a run, an evaluation or a qualification removes what dead processes have left.
    `engine`: files of programs with an engine, which share the process that has imported it.
    `own_docker`: files that share a daemon of the tests' own, in the order of SLOW.
    `server`: the other files that use the session's server. One more has to start and to trace all its programs.
    """
    if "/unit/" in file:
        return file
    for group, names in {"daemon": DAEMON_WIDE, "engine": ENGINE, "own_docker": OWN_DOCKER}.items():
        if Path(file).stem.removeprefix("test_") in names:
            return group
    return "server" if "conformance/" in file or "server_url" in (ROOT / file).read_text() else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest group first, then the files with servers of their own: what is left at the end is short."""
    if since := config.getoption("--since"):
        _leave_out_unchanged(config, items, since)

    def place(item: pytest.Item) -> int:
        group = _group(item.nodeid.split("::")[0])
        if group in LONG_GROUPS:
            return LONG_GROUPS.index(group) - len(LONG_GROUPS)
        name = item.path.stem.removeprefix("test_")
        return SLOW.index(name) if name in SLOW else len(SLOW)

    items.sort(key=place)


def _leave_out_unchanged(config: pytest.Config, items: list[pytest.Item], since: str) -> None:
    files = {item: item.nodeid.split("::")[0] for item in items}
    try:
        kept = chosen(set(files.values()), since, ROOT)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.hook.pytest_deselected(items=[item for item in items if files[item] not in kept])
    items[:] = [item for item in items if files[item] in kept]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds of each process, and of its longest groups: the longest process is what a run of the tests takes."""
    seconds: dict[str, dict[str, float]] = {}
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and hasattr(report, "node"):
            group = Path(_group(report.nodeid.split("::")[0])).stem
            groups = seconds.setdefault(report.node.gateway.id, {})
            groups[group] = groups.get(group, 0.0) + report.duration
    for process, groups in sorted(seconds.items()):
        named = sorted(groups, key=lambda group: -groups[group])[:LONGEST]
        longest = ", ".join(f"{group} {groups[group]:.0f}" for group in named)
        terminalreporter.write_line(f"seconds of {process}: {sum(groups.values()):.0f}: {longest}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    return Groups(config, log)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On a disk for tests marked `disk`."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ht-test-") as name:
        yield Path(name)


def free_port() -> int:
    """A port below those that the system gives to sockets by itself: nobody takes it before a server does.

    Each process of the tests has ports of its own, and gives each once.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in itertools.islice(_PORTS, PORTS_EACH):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", FIRST_PORT + worker % 10 * PORTS_EACH + port % PORTS_EACH))
            return probe.getsockname()[1]
    raise OSError("no free port for a test's server")


def run_script(
    *command: str | Path, env: dict[str, str] | None = None, timeout_sec: float = 900
) -> subprocess.CompletedProcess[str]:
    """Runs a script of the repository in its root. stderr is part of stdout."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout_sec,
        check=False,
    )


def succeed(*command: str | Path, env: dict[str, str] | None = None, timeout_sec: float = 900) -> str:
    """run_script; fails the test with the script's output unless it exits with 0."""
    done = run_script(*command, env=env, timeout_sec=timeout_sec)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """The quickstart's policy."""
    if not (ROOT / MODEL / "model.safetensors").is_file():
        pytest.fail(f"{MODEL} is missing: it is part of the repository, or made by scripts/quickstart")
    return MODEL


@pytest.fixture(scope="session")
def server_env() -> None:
    """server/.venv is there."""
    succeed("scripts/setup.sh", "--server", timeout_sec=900)


@contextmanager
def live_server(model: Path, state: Path, devices: int = 1, /, **settings: str) -> Iterator[str]:
    """URL of a real server that serves `model`, with 7 LoRA slots and rank <= 16 unless `settings` say otherwise."""
    port = free_port()
    env = SMALL_SERVER | {"SKYRL_TX_PORT": str(port), "SKYRL_TX_STATE": str(state)} | settings
    succeed("scripts/start_skyrl_tx.sh", "--background", model, str(devices), env=env, timeout_sec=900)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        succeed("scripts/stop_skyrl_tx.sh", str(port), env=env)


@pytest.fixture(scope="session")
def server_url(tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server as we start it; one for the whole session."""
    with live_server(tiny_model_dir, tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def stock_url(tiny_model_dir: Path, server_env: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """skyrl as published, but for the answers without which our SDK cannot talk to it."""
    with live_server(tiny_model_dir, tmp_path_factory.mktemp("stock"), SKYRL_TX_REPAIRS="sdk") as url:
        yield url


@pytest.fixture(scope="session")
def docker_ready() -> str:
    """The Docker engine answers, `docker compose` works, the base image is there; its tag is returned."""
    succeed("scripts/setup.sh", "--base-image", timeout_sec=900)
    return BASE_IMAGE
