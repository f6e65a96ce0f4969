"""What every unit test is spared."""

from pathlib import Path

import certifi
import pytest

END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="session")
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(Path(certifi.where()).read_text().partition(END)[0] + END)
    return path


@pytest.fixture(autouse=True)
def few_certificates(one_certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP client reads all that the machine trusts when it is made; a whole fake run makes several clients."""
    monkeypatch.setenv("SSL_CERT_FILE", str(one_certificate))
