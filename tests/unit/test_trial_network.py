"""The network of trials and its host rules, without a daemon: name servers, warnings, retries."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError, ImageNotFound, NotFound

from harbortrainer.docker.box import container
from harbortrainer.docker.network import bridge as network
from harbortrainer.docker.network.bridge import trial_network, uses_network
from harbortrainer.docker.network.host_rules import name_servers, set_rules
from harbortrainer.errors import EnvironmentFault
from tests.support.fake_engine import use_engine
from tests.support.task_folder import write_task


def error(kind: type[APIError], status: int, text: str) -> APIError:
    response = requests.Response()
    response.status_code = status
    return kind(text, response, text)


class Daemon:
    """`refusals`: what each request for the network raises, until it is made."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = list(refusals)
        self.made: list[dict[str, Any]] = []
        self.present: dict[str, dict[str, Any]] = {}

    def info(self) -> dict[str, str]:
        return {"ID": "ABCD:EFGH"}

    def networks(self, filters: dict[str, str] | None = None) -> list[dict[str, Any]]:
        return list(self.present.values())

    def inspect_network(self, _name: str) -> dict[str, Any]:
        return {"Options": {"com.docker.network.driver.mtu": "1400"}}

    def create_network(self, name: str, **given: Any) -> None:
        self.made.append(given)
        if self.refusals:
            raise self.refusals.pop(0)
        id = str(len(self.made))
        self.present[id] = {"Id": id, "Name": name, "Labels": given["labels"]}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Daemon]]:
    """The daemon of this test, which is on no machine: its bridge has no interface here, and no rules can be set."""

    def given(*refusals: Exception) -> Daemon:
        daemon = Daemon(*refusals)
        use_engine(monkeypatch, daemon)
        network.forget_network()
        return daemon

    yield given
    network.forget_network()


def test_the_network_is_created_once_and_found_again(use: Callable[..., Daemon]) -> None:
    daemon = use()
    first = trial_network()
    assert trial_network() == first and len(daemon.made) == 1
    (made,) = daemon.made
    assert made["options"]["com.docker.network.bridge.enable_icc"] == "false"
    assert made["options"]["com.docker.network.driver.mtu"] == "1400"  # as the daemon's default bridge
    assert made["options"]["com.docker.network.bridge.name"] == first.bridge == made["labels"]["harbortrainer.bridge"]
    assert len(first.bridge) < 16  # as the kernel demands
    network.forget_network()
    assert trial_network() == first and len(daemon.made) == 1


def test_a_network_that_another_process_makes_meanwhile_is_shared(use: Callable[..., Daemon]) -> None:
    daemon = use(error(APIError, 403, "networks have same bridge name"))
    theirs = {"Id": "9", "Name": network.NAME, "Labels": {"harbortrainer.bridge": "ht-x"}}
    make = daemon.create_network

    def raced(name: str, **given: Any) -> None:
        daemon.present["9"] = theirs
        make(name, **given)

    daemon.create_network = raced  # type: ignore[method-assign]
    assert trial_network().id == "9"


def test_a_daemon_that_refuses_is_a_fault_with_its_fix(use: Callable[..., Daemon]) -> None:
    use(error(APIError, 500, "iptables failed"))
    with pytest.raises(EnvironmentFault, match=r"harbortrainer-trials.*iptables failed; remove unused networks"):
        trial_network()


def test_trials_that_can_reach_the_machine_are_warned_of_once(
    use: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    use()
    assert trial_network() == trial_network()
    (message,) = caplog.messages
    assert "they can reach the addresses of Docker's machine: the Docker daemon does not run on this" in message
    assert "SKYRL_TX_API_KEY" in message


@pytest.mark.parametrize(
    ("toml", "files", "joins"),
    [
        ("", {}, True),
        ('[environment]\nnetwork_mode = "no-network"\n', {}, False),
        ('[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n', {}, True),
        ("", {"environment/docker-compose.yaml": "services: {}\n"}, False),
    ],
)
def test_only_tasks_with_a_network_open_it(tmp_path: Path, toml: str, files: dict[str, str], joins: bool) -> None:
    assert uses_network(write_task(tmp_path / "task", toml=toml, files=files)) is joins


def test_a_start_is_tried_again_only_when_the_network_is_gone(use: Callable[..., Daemon]) -> None:
    use()
    trial_network()
    faults = [error(NotFound, 404, "network 1 not found")]

    def work() -> str:
        if faults:
            raise faults.pop()
        return "started"

    assert container._with_network(work) == "started" and not network._open
    for other in (error(ImageNotFound, 404, "no network image"), error(NotFound, 404, "No such container")):
        faults = [other]
        with pytest.raises(type(other)):
            container._with_network(work)


def test_the_name_servers_of_the_machine_stay_reachable(tmp_path: Path) -> None:
    resolv, daemon = tmp_path / "resolv.conf", tmp_path / "daemon.json"
    resolv.write_text("# a\nsearch x\nnameserver 127.0.0.53\nnameserver 10.1.1.1\nnameserver fe80::1\nnameserver\n")
    daemon.write_text('{"dns": ["172.17.0.1", "no address", "10.1.1.1"]}')
    assert list(name_servers((resolv, tmp_path / "none"), daemon)) == ["10.1.1.1", "172.17.0.1"]
    daemon.write_text("not JSON")
    assert list(name_servers((resolv,), daemon)) == ["10.1.1.1"]


def test_the_reason_why_rules_cannot_be_set_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the bridge `lo`: every machine has that interface."""
    assert set_rules("ht-none") == "the Docker daemon does not run on this machine"
    user = 1000
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert "only root" in set_rules("lo", tmp_path)
    (tmp_path / "lo").touch()
    assert set_rules("lo", tmp_path) == ""  # root has set them
    user = 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs the program iptables" in set_rules("lo")
    for name in ("iptables", "iptables-restore"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho x >> {tmp_path}/ran\necho 'no  permission' >&2\nexit 4\n")
        (tmp_path / name).chmod(0o755)
    assert "(no permission)" in set_rules("lo") and (tmp_path / "ran").read_text() == "x\n"
