"""Export: what leaves Tinker cloud, through a stand-in of its SDK; whole models, through one of the cookbook."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.backend.sessions import Session
from harbortrainer.errors import BackendError, UserError
from harbortrainer.weights import export as exporting
from harbortrainer.weights.arguments import ExportArgs
from harbortrainer.weights.fetch import fetch_adapter
from harbortrainer.weights.merge import check_merging
from tests.support.recorded_run import Answer, FakeApi, Recorder, fake_outside

PATH = "tinker://run-1/weights/final"
EXTERNAL = "tinker://run-2/external_weights/export"
FILES = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"weights", "checkpoint_complete": b""}


class Signed(BaseHTTPRequestHandler):
    """Serves FILES to who has the signature, and no key."""

    def do_GET(self) -> None:
        name, _, signature = self.path.strip("/").partition("?")
        allowed = signature == "signed" and "x-api-key" not in self.headers and "authorization" not in self.headers
        self.send_response(200 if allowed and name in FILES else 403)
        self.end_headers()
        if allowed:
            self.wfile.write(FILES.get(name, b""))

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Signed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Cloud:
    """The SDK's clients in one, as Tinker cloud answers them: `urls` of the files of EXTERNAL."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls, self.asked = urls, list[tuple[str, Any]]()

    def _note(self, what: str, value: Any, answer: Any) -> Answer[Any]:
        self.asked.append((what, value))
        return Answer(answer)

    def get_weights_info_by_tinker_path(self, path: str) -> Answer[Any]:
        return self._note("info", path, SimpleNamespace(base_model="models/one", lora_rank=8))

    def create_training_client_from_state(self, path: str) -> Answer[Any]:
        return self._note("load", path, self)

    def save_weights_external(self, name: str, ttl_seconds: int) -> Answer[Any]:
        return self._note("save", ttl_seconds, SimpleNamespace(path=EXTERNAL))

    def get_external_weights_urls(self, path: str) -> Answer[Any]:
        return self._note("urls", path, SimpleNamespace(urls=self.urls))

    async def delete_checkpoint_from_tinker_path(self, path: str) -> None:
        self.asked.append(("delete", path))

    def close(self, status: str) -> Answer[Any]:
        return Answer(None)

    @property
    def session(self) -> Session:
        both: Any = self
        return Session(both, both, "https://cloud", "tml-key")


def urls(storage: str, *names: str) -> dict[str, str]:
    return {name: f"{storage}/{name}?signed" for name in names or FILES}


async def test_the_files_of_a_state_come_by_their_signed_urls_and_are_deleted(storage: str, tmp_path: Path) -> None:
    cloud = Cloud(urls(storage))
    await fetch_adapter(cloud.session, PATH, "models/one", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == FILES.keys()
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {
        "r": 8,
        "base_model_name_or_path": "models/one",
    }
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == b"weights"
    assert cloud.asked == [("load", PATH), ("save", 3600), ("urls", EXTERNAL), ("delete", EXTERNAL)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("adapter_config.json",), "gave no adapter_config.json and adapter_model.safetensors"),
        (("../evil",), "has the name '../evil', which leads elsewhere"),
        (("adapter_config.json", "unknown"), "unknown: .*403.*; export again"),
    ],
)
async def test_a_state_that_cannot_be_fetched_is_one_line_and_leaves_nothing_there(
    storage: str, tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    cloud = Cloud(urls(storage, *names))
    with pytest.raises(BackendError, match=message):
        await fetch_adapter(cloud.session, PATH, "models/one", tmp_path)
    assert cloud.asked[-1] == ("delete", EXTERNAL)


async def test_weights_for_sampling_alone_are_refused(tmp_path: Path) -> None:
    cloud = Cloud({})
    with pytest.raises(UserError, match="weights saved for sampling cannot be fetched; give a training state"):
        await fetch_adapter(cloud.session, "tinker://run-1/sampler_weights/final", "models/one", tmp_path)
    assert cloud.asked == []


# Stands for a Python with the cookbook: `python -c PROGRAM [BASE ADAPTER WHOLE]`.
MERGES = """#!/bin/sh
[ $# -eq 2 ] && exit 0
[ "$3" = models/one ] && [ -f "$4/adapter_model.safetensors" ] || { echo "ValueError: no adapter"; exit 1; }
mkdir "$5" && echo whole >"$5/model.safetensors"
"""


class CloudApi(FakeApi):
    def __init__(self, cloud: Cloud) -> None:
        super().__init__(Recorder())
        self._cloud = cloud

    async def session(self, rest: Any, url: str, key: str, say: Any) -> Session:
        return self._cloud.session


@pytest.fixture
def cloud(storage: str, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    return Cloud(urls(storage))


async def export(cloud: Cloud, **fields: Any) -> int:
    outside = replace(fake_outside(Recorder()), api=CloudApi(cloud))
    return await exporting.export(ExportArgs(checkpoint=PATH, merged=True, **fields), outside)


def python(folder: Path, program: str = MERGES) -> str:
    (file := folder / "python").write_text(program)
    file.chmod(0o755)
    return str(file)


async def test_a_whole_model_has_no_adapter_beside_it(cloud: Cloud, tmp_path: Path) -> None:
    assert await export(cloud, to=str(tmp_path / "out"), python=python(tmp_path)) == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"model.safetensors", "README.md"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: transformers" in card and "# A model of one" in card
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


async def test_without_torch_nothing_is_asked_and_a_failed_merge_leaves_nothing(cloud: Cloud, tmp_path: Path) -> None:
    lacking = python(tmp_path, "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\"; exit 1\n")
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"merged=true: .*python has no tinker-cookbook with torch \(ModuleNotFound"):
        await export(cloud, to=str(out), python=lacking)
    assert cloud.asked == []
    with pytest.raises(UserError, match=r"nowhere has no tinker-cookbook with torch \(No such file"):
        await check_merging(str(tmp_path / "nowhere"))
    broken = python(tmp_path, MERGES.replace("models/one", "models/two"))
    with pytest.raises(UserError, match=r"build_hf_model failed: ValueError: no adapter"):
        await export(cloud, to=str(out), python=broken)
    assert not out.exists() and [file.name for file in tmp_path.iterdir()] == ["python"]
