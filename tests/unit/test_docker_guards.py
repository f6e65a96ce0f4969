"""Ownership labels and the choice of environment: all without a daemon."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.models.environment_type import EnvironmentType

from harbortrainer.docker.box.container import container_name
from harbortrainer.docker.keeping import ownership
from harbortrainer.durable.process import HOST, PID, started, this_process
from harbortrainer.errors import UserError
from harbortrainer.venues.harbor.environment import (
    ENGINE_ENVIRONMENT,
    check_tasks,
    environment_config,
    python_warning,
)

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    def make(toml: str = "", compose: str | None = None) -> Path:
        (tmp_path / "environment").mkdir()
        (tmp_path / "environment" / "Dockerfile").write_text("FROM x\n")
        (tmp_path / "task.toml").write_text(f'schema_version = "1.4"\n{toml}')
        if compose:
            (tmp_path / "environment" / "docker-compose.yaml").write_text(compose)
        return tmp_path

    return make


def test_a_reused_pid_does_not_keep_the_dead_alive() -> None:
    assert ownership.is_left_over(ownership.labels("r") | {PID: f"{os.getpid()}:1"})


def test_owners_out_of_our_sight_and_strangers_are_left_alone() -> None:
    assert not ownership.is_left_over(ownership.labels("r") | {PID: "999999:1", HOST: "elsewhere"})
    assert not ownership.is_left_over({PID: "999999:1"})
    assert not ownership.is_left_over({})


def test_a_run_removes_its_own_and_nothing_of_a_live_neighbour() -> None:
    """Another live process: with the labels of a copied run directory, and of another run."""
    neighbour = this_process() | {PID: f"{os.getppid()}:{started(os.getppid())}"}
    unseen = this_process() | {HOST: "elsewhere"}
    assert ownership.is_left_over(ownership.labels("r"), "r")
    assert ownership.is_left_over(ownership.labels("r") | unseen, "r"), "an earlier process of the run, before a reboot"
    assert not ownership.is_left_over(ownership.labels("r") | neighbour, "r")
    assert not ownership.is_left_over(ownership.labels("other") | unseen, "r")
    assert not ownership.is_left_over(ownership.labels("other"), "r")


def test_container_names_are_valid_and_never_repeat() -> None:
    first, second = (container_name("s1-täsk with/odd:chars__env") for _ in range(2))
    assert first != second
    assert first.isascii() and not set(first) & set(" /:")
    named = [container_name(f"{letter}000012-p03-g01-a2__env").rpartition("-")[0] for letter in "se"]
    assert named == ["ht-000012-p03-g01-a2__env"] * 2, "a policy that looks it up does not learn the mode"


def test_a_dockerfile_task_gets_our_environment(make_task: MakeTask) -> None:
    config = environment_config("docker", {"pids_limit": 100, "override_memory_mb": 300}, make_task(), "run7")
    assert config.import_path == ENGINE_ENVIRONMENT
    assert config.kwargs == {"run_id": "run7", "pids_limit": 100}
    assert config.override_memory_mb == 300


def test_options_of_our_environment_are_read(make_task: MakeTask) -> None:
    given = {"allow_sudo": True, "cap_add": "NET_RAW, SYS_PTRACE", "prebuilt_only": True}
    assert environment_config("docker", given, make_task(), "r").kwargs == {
        "run_id": "r",
        "allow_sudo": True,
        "cap_add": ["NET_RAW", "SYS_PTRACE"],
        "prebuilt_only": True,
    }


def test_all_tasks_are_checked_at_once(tmp_path: Path) -> None:
    names = ("first", "second", "good")
    for name in names:
        (tmp_path / name / "environment").mkdir(parents=True)
        mode = "no-network" if name == "good" else "allowlist"
        (tmp_path / name / "task.toml").write_text(f'[environment]\nnetwork_mode = "{mode}"\n')
    with pytest.raises(UserError, match=r"^task first: network_mode=allowlist.*\ntask second: .*allowlist[^\n]*$"):
        check_tasks([tmp_path / name for name in names], "docker", {})
    check_tasks([tmp_path / "good"], "docker", {})
    with pytest.raises(UserError, match=r"^environment_kwargs.pids_limit=-1[^\n]*$"):
        check_tasks([tmp_path / "good"] * 2, "docker", {"pids_limit": -1})


def test_a_sandbox_without_its_key_or_package_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"^environment_type=e2b: [^\n]*E2B_API_KEY[^\n]*$"):
        check_tasks([], "e2b", {})
    with pytest.raises(UserError, match=r"^environment_type=vercel: [^\n]*pip install 'harbor\[vercel\]'[^\n]*$"):
        check_tasks([], "vercel", {})
    monkeypatch.setenv("E2B_API_KEY", "e2b-x")
    check_tasks([], "e2b", {})


@pytest.mark.parametrize("version", [(3, 12, 1), (3, 12, 10), (3, 13, 0), (3, 13, 3)])
def test_a_python_whose_tarfile_lets_files_out_is_named(version: tuple[int, int, int]) -> None:
    (line,) = python_warning(version)
    assert line.startswith(f"Python {'.'.join(map(str, version))}: ") and "install Python 3.12.11, 3.13.4" in line
    assert not any(map(python_warning, [(3, 12, 11), (3, 12, 20), (3, 13, 4), (3, 14, 0)]))


def test_other_environments_pass_through(make_task: MakeTask) -> None:
    config = environment_config("daytona", {"snapshot": "s", "override_cpus": 2}, make_task(), "run7")
    assert (config.type, config.kwargs, config.override_cpus) == (EnvironmentType.DAYTONA, {"snapshot": "s"}, 2)


@pytest.mark.parametrize(
    ("environment_type", "kwargs", "message"),
    [
        ("dockr", {}, "environment_type=dockr.*did you mean docker"),
        ("docker", {"pid_limit": 3}, "environment_kwargs.pid_limit.*did you mean pids_limit.*one of allow_sudo, "),
        ("docker", {"override_memory_mb": "much"}, "environment_kwargs.override_memory_mb='much'"),
        ("docker", {"pids_limit": "many"}, "environment_kwargs.pids_limit='many': Input should be a valid integer"),
        ("docker", {"pids_limit": True}, "environment_kwargs.pids_limit=True: Input should be a valid integer"),
        ("docker", {"allow_sudo": 1}, "environment_kwargs.allow_sudo=1: Input should be a valid boolean"),
        ("docker", {"cap_add": "NET_RAW, "}, "environment_kwargs.cap_add.1=' ': String should have at least 1"),
        ("docker", {"cap_add": 3}, "environment_kwargs.cap_add=3: Input should be a valid list"),
        ("docker", {"keep_processes": "*"}, "environment_kwargs.keep_processes: unknown for docker"),
    ],
)
def test_wrong_settings_are_named(
    make_task: MakeTask, environment_type: str, kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        environment_config(environment_type, kwargs, make_task(), "run7")


@pytest.mark.parametrize(
    ("main", "is_refused"),
    [
        ("{image: a}", True),
        ("", True),
        ("{build: {dockerfile: Other}}", False),
        ("{extends: {file: b, service: c}}", False),
    ],
)
def test_a_compose_file_without_what_builds_its_main_service_is_refused(
    make_task: MakeTask, main: str, is_refused: bool
) -> None:
    task = make_task(compose=f"services:\n  main: {main}\n")
    environment_config("docker", {}, task, "run7")
    (task / "environment" / "Dockerfile").unlink()
    with pytest.raises(UserError, match="no Dockerfile") if is_refused else contextlib.nullcontext():
        environment_config("docker", {}, task, "run7")


STEP = '[[steps]]\nname = "one"\n'


@pytest.mark.parametrize("section", ["environment", "agent", "verifier", "steps.agent", "steps.verifier.environment"])
def test_an_allowlist_is_refused_by_name(make_task: MakeTask, section: str) -> None:
    step = STEP if section.startswith("steps.") else ""
    task = make_task(f'{step}[{section}]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n')
    with pytest.raises(UserError, match=f"task {task.name}: network_mode=allowlist"):
        environment_config("docker", {}, task, "run7")
