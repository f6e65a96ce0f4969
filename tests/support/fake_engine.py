"""A client of Docker's daemon that a test has made: all code of this process asks it."""

from typing import Any

import pytest
from docker.errors import DockerException

from harbortrainer.docker import daemon


def use_engine(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """Put `client` in the place of Docker's, whatever DOCKER_HOST says."""
    monkeypatch.setattr(daemon, "_client", lambda *_: client)


class FakeEngine:
    """Has nothing but what a subclass lists; what no subclass defines cannot be asked."""

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return []

    def networks(self, **_: Any) -> list[dict[str, Any]]:
        return []

    def volumes(self, **_: Any) -> dict[str, Any]:
        return {"Volumes": []}

    def images(self, **_: Any) -> list[dict[str, Any]]:
        return []

    def remove_container(self, name: str, **_: Any) -> None:
        """It is gone."""

    def __getattr__(self, name: str) -> Any:
        raise DockerException(f"{name}: this daemon cannot do it")
