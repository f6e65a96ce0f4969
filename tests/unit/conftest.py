"""What every unit test is spared."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """An HTTP client reads all certificates of the machine when it is made; a whole fake run makes several."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(Path(__file__).parent))
