"""Archives of files that go into a container."""

import contextlib
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.docker.box.archive import LOGS
from harbortrainer.docker.box.files import fetch, upload_dir
from tests.support.archives import packed
from tests.support.fake_engine import use_engine


def test_many_files_are_packed_as_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and memory that double with each file would end neither here nor in a trial with an agent's logs."""
    for number in range(100):
        (tmp_path / f"{number:03}").write_text(str(number))
    put = list[tarfile.TarInfo]()

    def put_archive(_container: str, _path: str, archive: Any) -> None:
        with tarfile.open(fileobj=archive) as tar:
            put.extend(tar.getmembers())

    use_engine(monkeypatch, SimpleNamespace(put_archive=put_archive))
    upload_dir("c", tmp_path, "/logs/agent")
    assert [one.name for one in put] == [f"logs/agent/{number:03}" for number in range(100)]
    assert {(one.uid, one.gid, one.uname, one.gname) for one in put} == {(0, 0, "", "")}


@pytest.mark.parametrize("size", [LOGS.size - 10, LOGS.size + 1])
def test_where_the_daemon_sends_logs_rewards_come_even_if_the_rest_is_too_much(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(url: str, params: dict[str, str], **_: Any) -> Any:
        entries = [("a", tarfile.REGTYPE, bytes(size)), ("reward.txt", tarfile.REGTYPE, b"0")]
        name = params["path"].rpartition("/")[2]
        found = entries if name == "." else [one for one in entries if one[0] == name]
        whole = packed(found)
        pieces = (whole[i : i + 65536] for i in range(0, len(whole), 65536))
        return contextlib.nullcontext(
            SimpleNamespace(
                status_code=200 if found else 404, raise_for_status=lambda: None, iter_content=lambda _: pieces
            )
        )

    use_engine(monkeypatch, SimpleNamespace(base_url="", api_version="1", get=answer))
    fetch("c", "/logs/verifier", tmp_path / "got")
    assert (tmp_path / "got" / "reward.txt").read_text() == "0"
    assert (tmp_path / "got" / "a").exists() is (size < LOGS.size) is not ("not copied whole" in caplog.text)
