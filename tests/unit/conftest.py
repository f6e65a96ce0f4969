"""What every unit test is spared."""

from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from tests.support.report_walk import Walk, walker

END = "-----END CERTIFICATE-----\n"


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


@pytest.fixture(scope="session")
def walked() -> Iterator[Walk]:
    """Walks a report's page."""
    with walker() as walk:
        yield walk
