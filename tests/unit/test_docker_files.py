"""Archives of files that go into a container."""

import tarfile
from pathlib import Path

from harbortrainer.docker.files import _pack


def test_many_files_are_packed_as_roots(tmp_path: Path) -> None:
    """Time and memory that double with each file would end neither here nor in a trial with an agent's logs."""
    for number in range(100):
        (tmp_path / f"{number:03}").write_text(str(number))
    with _pack(tmp_path, "logs/agent") as packed, tarfile.open(fileobj=packed) as tar:
        members = tar.getmembers()
        assert [one.name for one in members] == [f"logs/agent/{number:03}" for number in range(100)]
        assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}
