"""What is laid on top of a task's compose file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from harbortrainer.docker.box.compose import overlay
from harbortrainer.docker.box.environment import ComposeEnvironment
from harbortrainer.docker.keeping import ownership
from harbortrainer.errors import UserError

Lay = Callable[..., dict[str, Any]]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    def lay(compose: str | None, *, prebuilt: bool = False) -> dict[str, Any]:
        if compose is not None:
            (tmp_path / "docker-compose.yaml").write_text(compose)
        return yaml.safe_load(overlay(tmp_path, "run7", prebuilt=prebuilt).read_text())

    return lay


def test_everything_that_compose_makes_is_labelled_and_nothing_that_it_finds(lay: Lay) -> None:
    content = lay("""
services: {db: {image: x}, web: {build: ./web}}
networks: {inner: , found: {external: true}}
volumes: {data: {}, kept: {external: true}}
""")
    labels = ownership.labels("run7")
    own = {name: dict(service["labels"]) for name, service in content["services"].items()}
    assert len({label.pop("harbortrainer.overlay") for label in own.values()}) == 1, "one trial"
    assert own == dict.fromkeys(("main", "db", "web"), labels)
    assert {name: network["labels"] for name, network in content["networks"].items()} == {
        "default": labels,
        "inner": labels,
    }
    assert content["volumes"] == {"data": {"labels": labels}}
    built = {name for name, service in content["services"].items() if service.get("build") == {"labels": labels}}
    assert built == {"main", "web"}


def bridges(content: dict[str, Any]) -> dict[str, str | None]:
    named = {name: network.get("driver_opts", {}) for name, network in content["networks"].items()}
    return {name: options.get("com.docker.network.bridge.name") for name, options in named.items()}


def test_a_task_that_asks_for_the_hosts_address_reaches_the_host(lay: Lay) -> None:
    content = lay("services: {main: {extra_hosts: ['host.docker.internal:host-gateway']}}\n")
    assert bridges(content) == {"default": None}


def test_an_environment_without_a_compose_file_is_labelled_too(lay: Lay) -> None:
    labels = ownership.labels("run7")
    main = lay(None)["services"]["main"]
    assert main.pop("labels").items() > labels.items()
    assert main == {"init": True, "stop_grace_period": "0s", "build": {"labels": labels}}


def test_tags_of_compose_are_read(lay: Lay) -> None:
    content = lay("services:\n  main: !override\n    build: !reset {}\n  db: {ports: !reset []}\n")
    assert set(content["services"]) == {"main", "db"}


@pytest.mark.parametrize("text", ["", "services:\n", "- a\n"])
def test_an_empty_file_still_names_the_main_service(lay: Lay, text: str) -> None:
    assert set(lay(text)["services"]) == {"main"}


def test_a_broken_file_is_one_line(lay: Lay) -> None:
    with pytest.raises(UserError, match=r"docker-compose.yaml: not a compose file") as fault:
        lay("services: [")
    assert "\n" not in str(fault.value)


def test_trials_of_the_same_name_in_two_runs_are_two_compose_projects(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").touch()
    name, paths, task = "s000000-p00-g00-a0__env", TrialPaths(tmp_path), EnvironmentConfig()
    made = {
        ComposeEnvironment(
            tmp_path, "task", session_id=name, trial_paths=paths, task_env_config=task, run_id=run
        ).session_id
        for run in ("r1", "r2")
    }
    assert len(made) == 2 and all(one.startswith(f"{name}-") for one in made)
