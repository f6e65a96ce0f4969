"""Whether containers get quotas, told by a daemon that answers what it is made to."""

from typing import Any

import pytest
import requests
from docker.errors import APIError

from src.rollout.docker import disk_space
from src.rollout.docker.disk_space import storage_options

REFUSAL = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"


class Daemon:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: str, backing: str, refusal: str = "") -> None:
        self.made: list[Any] = []
        self._refusal = refusal
        self._info = {"Driver": driver, "DriverStatus": [["Backing Filesystem", backing], ["Supports d_type", "true"]]}
        monkeypatch.setattr(disk_space, "engine", lambda: self)
        disk_space.has_quotas.cache_clear()

    def info(self) -> dict[str, Any]:
        return self._info

    def create_host_config(self, **options: Any) -> Any:
        return options

    def create_container(self, _image: str, _command: str, **_: Any) -> dict[str, str]:
        if self._refusal:
            raise APIError(self._refusal, requests.Response())
        self.made.append("c")
        return {"Id": "c"}

    def remove_container(self, name: str, **_: Any) -> None:
        self.made.remove(name)


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    disk_space.has_quotas.cache_clear()


@pytest.mark.parametrize(
    ("driver", "backing", "refusal", "quota"),
    [
        ("overlay2", "extfs", "", False),
        ("vfs", "xfs", "", False),
        ("overlay2", "xfs", REFUSAL, False),
        ("overlay2", "xfs", "", True),
    ],
)
def test_a_quota_is_set_where_the_driver_has_them(
    monkeypatch: pytest.MonkeyPatch, driver: str, backing: str, refusal: str, quota: bool
) -> None:
    daemon = Daemon(monkeypatch, driver, backing, refusal)
    assert storage_options("image", 100) == ({"size": "100m"} if quota else None)
    assert storage_options("image", None) is None
    assert daemon.made == []


def test_another_refusal_is_not_taken_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    Daemon(monkeypatch, "overlay2", "xfs", "no such image")
    with pytest.raises(APIError):
        storage_options("image", 100)
