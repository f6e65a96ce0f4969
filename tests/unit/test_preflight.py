"""What is looked at before a run, without a daemon: one line each, errors and warnings."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.environments.docker.docker import DockerEnvironment

from harbortrainer.docker.checks import preflight
from harbortrainer.docker.checks.preflight import (
    Findings,
    TaskNeeds,
    check_cpus,
    check_memory,
    check_tools,
    task_needs,
)
from harbortrainer.docker.images.builds import buildkit_command
from harbortrainer.errors import EnvironmentFault, UserError
from tests.support.task_folder import write_task

GIB = 1024**3
LOCAL = "http+docker://localhost"


def task(name: str = "t", **needs: float | int | bool | str) -> TaskNeeds:
    asked: dict = {"cpus": 1, "memory_mb": 1024} | needs
    return TaskNeeds(name, Path(name), **asked)


def only(findings: Findings) -> str:
    """The one line there is."""
    (line,) = [*findings.errors, *findings.warnings]
    assert "\n" not in line
    return line


# -- the daemon


def test_a_refusing_daemon_and_a_closed_socket_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="refuses"):
        preflight.check_docker([], 8, {})
    assert "usermod" in preflight._explain("PermissionError(13, 'Permission denied')", "unix:///var/run/docker.sock")


@pytest.mark.parametrize(
    "settings", [{"DOCKER_HOST": "ssh://a@b"}, {"DOCKER_HOST": "tcp://b:2376", "DOCKER_TLS_VERIFY": "1"}]
)
def test_a_remote_daemon_over_ssh_or_tls_is_refused(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFault, match="plain connection"):
        preflight.check_docker([], 8, {})


def test_an_old_daemon_and_another_system_are_two_lines() -> None:
    preflight._check_daemon("1.38", {"OSType": "windows"}, findings := Findings())
    assert len(findings.errors) == 2 and "19.03" in findings.errors[0] and "windows" in findings.errors[1]


def test_a_full_disk_names_the_folder() -> None:
    preflight._check_disk("/proc", LOCAL, findings := Findings())  # where nothing is free
    assert "only 0.0 GiB free on Docker's disk (/proc)" in only(findings) and findings.errors


@pytest.mark.parametrize(("root", "url"), [("/var", "http://10.0.0.1:2375"), ("/no/such/folder", LOCAL)])
def test_a_disk_out_of_sight_is_told(root: str, url: str) -> None:
    preflight._check_disk(root, url, findings := Findings())
    assert "could not be checked" in only(findings) and findings.warnings


def test_open_files_are_raised_or_missed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        preflight._check_descriptors(8, findings := Findings())
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (320, hard) and not findings.errors
        preflight._check_descriptors(hard, findings)
        assert f"the limit is {hard}" in only(findings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- memory, CPUs


def test_a_task_that_needs_more_memory_than_there_is_is_an_error() -> None:
    check_memory([task(), task("big", memory_mb=9000)], 2, 8 * GIB, findings := Findings())
    assert only(findings).startswith("task big: memory_mb=9000, Docker has 8192 MiB") and findings.errors
    assert only(findings).endswith("or leave out what needs it: tasks_exclude=big")


@pytest.mark.parametrize(("n", "told"), [(8, False), (9, True)])
def test_memory_for_less_than_all_is_a_warning(n: int, told: bool) -> None:
    check_memory([task()], n, 8 * GIB, findings := Findings())
    assert bool(findings.warnings) is told and not findings.errors
    assert not told or "9216 MiB" in only(findings)


def test_too_many_cpus_stop_compose_alone() -> None:
    check_cpus([task("ours", cpus=4), task("composed", cpus=4, compose=True)], 2, findings := Findings())
    assert findings.errors[0].startswith("task composed: cpus=4, Docker has 2")
    assert findings.warnings[0].startswith("task ours: cpus=4")


def test_gpus_where_docker_lists_no_runtime_for_them_are_a_warning(tmp_path: Path) -> None:
    path = write_task(tmp_path / "a", toml="[environment]\ngpus = 2\n")
    preflight.check_gpus([task_needs(path, {}), task()], {"runc"}, findings := Findings())
    assert only(findings).startswith("task a: gpus=2, Docker lists no NVIDIA runtime") and not findings.errors
    preflight.check_gpus([task_needs(path, {})], {"runc", "nvidia"}, findings := Findings())
    preflight.check_gpus([task_needs(path, {"override_gpus": "0"})], {"runc"}, findings)
    assert not findings.warnings


# -- tools


def test_missing_tools_are_named_with_who_needs_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check_tools([task()], findings := Findings())
    assert findings == Findings()
    check_tools([task("c", compose=True), task("d", compose=True), task("b", buildkit="heredoc")], findings)
    assert findings.errors[0].startswith("task c and 1 more: docker-compose.yaml")
    assert findings.errors[1].startswith("task b: the Dockerfile uses heredoc")


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ('[ "$1" = buildx ]', "build"),
        ('[ "$1" = --version ] && echo Docker version 20.10.24, build 1', "build"),
        ('[ "$1" = --version ] && echo Docker version 28.2.2, build 1', None),
        ('[ "$1" = compose ]', "compose"),
    ],
)
def test_which_cli_can_buildkit(script: str, word: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cli = tmp_path / "docker"
    cli.write_text(f"#!/bin/sh\n{script} && echo yes\n")
    cli.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert buildkit_command() == (["docker", word] if word else [])


# -- what tasks ask for

MakeTask = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    def make(toml: str, **files: str) -> Path:
        (tmp_path / "environment").mkdir()
        (tmp_path / "task.toml").write_text(f'schema_version = "1.4"\n{toml}')
        for name, text in files.items():
            (tmp_path / "environment" / name.replace("compose", "docker-compose.yaml")).write_text(text)
        return tmp_path

    return make


def test_requests_of_a_task_and_their_overrides(make_task: MakeTask) -> None:
    path = make_task(
        "[environment]\ncpus = 2\nmemory_mb = 512\n[verifier.environment]\nmemory_mb = 2048\n",
        Dockerfile="FROM x\nRUN <<EOF\necho\nEOF\n",
    )
    needs = task_needs(path, {})
    assert (needs.cpus, needs.memory_mb, needs.compose, needs.buildkit) == (2, 2048, False, "heredoc")
    needs = task_needs(path, {"override_cpus": 1, "override_memory_mb": 256})
    assert (needs.cpus, needs.memory_mb) == (1, 256)
    with pytest.raises(UserError, match=r"environment_kwargs\.override_cpus='many': must be a number"):
        task_needs(path, {"override_cpus": "many"})
    with pytest.raises(UserError, match=r"environment_kwargs\.override_memory_mb=-5: must be a number, 0 or more"):
        task_needs(path, {"override_memory_mb": -5})


# -- the environment


def test_a_variable_that_tasks_take_and_that_is_not_set_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = '[[steps]]\nname = "one"\n[steps.verifier.env]\nSTEP = "${STEP_KEY}"\n'
    given = (
        '[environment.env]\nA = "${AGENT_KEY}"\nB = "${OTHER:-x}"\nC = "as it is"\n[verifier.env]\nJ = "${JUDGE_KEY}"\n'
    )
    both = [write_task(tmp_path / name, toml=given) for name in ("a", "b")]
    stepped = write_task(tmp_path / "stepped", toml=steps)
    for name in ("JUDGE_KEY", "STEP_KEY", "OTHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENT_KEY", "k")
    preflight.check_variables([task_needs(one, {}) for one in (*both, stepped)], findings := Findings())
    judge, step = findings.errors
    assert judge.startswith("JUDGE_KEY is not set") and judge.endswith("tasks_exclude=a,b")
    assert step.startswith("STEP_KEY is not set") and step.endswith("tasks_exclude=stepped")
    monkeypatch.setenv("JUDGE_KEY", "k")
    preflight.check_variables([task_needs(one, {}) for one in both], findings := Findings())
    assert not findings.errors


@pytest.mark.parametrize("probe", [0, 1])
def test_a_compose_task_whose_network_harbor_cannot_take_is_named_before_a_run(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, probe: int
) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\nexit {probe}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    DockerEnvironment._egress_control_kernel_support.cache_clear()
    closed = task_needs(make_task('[verifier]\nnetwork_mode = "no-network"\n', compose="services: {main: {}}\n"), {})
    preflight.check_networks([task(), closed], findings := Findings())
    DockerEnvironment._egress_control_kernel_support.cache_clear()
    assert len(findings.errors) == probe and (not probe or "network_mode=no-network with docker" in only(findings))


def test_a_variable_of_a_compose_file_that_nothing_sets_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_task(tmp_path / "a", toml='[environment]\ncpus = 1\n[environment.env]\nOWN = "x"\n')
    (path / "environment/docker-compose.yaml").write_text(
        "# ${COMMENT}\nservices:\n  main:\n    image: ${MAIN_IMAGE_NAME} $OWN ${HOST_AGENT_LOGS_PATH} ${SET}\n"
        "    command: echo $$PWD ${WITH:-x} ${TEST_DIR} $BARE ${CPUS} ${MEMORY}\n"
    )
    for name in ("COMMENT", "TEST_DIR", "BARE", "CPUS", "MEMORY", "WITH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SET", "")
    preflight.check_compose_variables([task_needs(path, {}), task_needs(path, {})], findings := Findings())
    bare, memory, other = findings.warnings
    assert bare.startswith("task a and 1 more: docker-compose.yaml uses ${BARE}, which is not set, and is empty then")
    assert "${MEMORY}" in memory and "set environment_kwargs.override_memory_mb=2048" in memory
    assert "${TEST_DIR}" in other and not findings.errors
    preflight.check_compose_variables([task_needs(path, {"override_memory_mb": 1024})], findings := Findings())
    assert not any("MEMORY" in line for line in findings.warnings)
