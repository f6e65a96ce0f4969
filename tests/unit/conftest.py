"""What every unit test is spared."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from tests.support.report_walk import Walk, walker

END = "-----END CERTIFICATE-----\n"
NUMBERS = itertools.count()
SHORT = {  # seconds between two tries or looks, which nothing here needs
    "harbortrainer.backend.health": {"POLL_SEC": 0.02},
    "harbortrainer.bundled.agents.relay": {"PAUSE_SEC": 0.01},
    "harbortrainer.docker.daemon": {"FIRST_PAUSE_SEC": 0.001, "LONGEST_PAUSE_SEC": 0.005},
    "harbortrainer.docker.images.supply": {"PAUSES_SEC": (0.001, 0.001)},
    "harbortrainer.docker.keeping.cleaning": {"FIRST_PAUSE_SEC": 0.01},
    "harbortrainer.model_api.service": {"PING_SEC": 0.01},
    "harbortrainer.other_models.remote_policy": {"FIRST_PAUSE_SEC": 0.01, "LONGEST_PAUSE_SEC": 0.02},
    "harbortrainer.training.outage": {"FIRST_PAUSE_SEC": 0.001},
    "harbortrainer.bundled.agents.installed": {"GRACE_SEC": 0.01},
    "repairs.vllm_adapters": {"LOAD_PAUSE_SEC": 0.01, "LOOK_SEC": 0.001},
    "repairs.vllm_client": {"POLL_SEC": 0.01},
    "repairs.vllm_sampling": {"PAUSE_SEC": 0.01},
    "sampler": {"LONGEST_PAUSE_SEC": 0.01, "POLL_SEC": 0.01, "WRITE_AGAIN_SEC": 0.01},
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before any fork, what nearly every process needs and takes half a second to import."""
    if getattr(session.config.option, "forks", 1) > 1:
        from transformers import PreTrainedTokenizerFast  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def few_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An HTTP client reads all that the machine trusts when it is made; a whole fake run makes several clients."""
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(Path(certifi.where()).read_text().partition(END)[0] + END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test's commands remember is neither the user's nor another test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{next(NUMBERS)}"))


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in ((module, *one) for module, pauses in SHORT.items() for one in pauses.items()):
            if module in sys.modules:
                patch.setattr(sys.modules[module], name, value)
        yield


@pytest.fixture(scope="session")
def walked() -> Iterator[Walk]:
    """Walks a report's page."""
    with walker() as walk:
        yield walk
