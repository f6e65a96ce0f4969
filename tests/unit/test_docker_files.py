"""Archives of files that go into a container and come out of it."""

import io
import os
import tarfile
from pathlib import Path

from harbortrainer.docker.files import _pack, _unpack


def test_many_files_are_packed_as_roots(tmp_path: Path) -> None:
    """Time and memory that double with each file would end neither here nor in a trial with an agent's logs."""
    for number in range(100):
        (tmp_path / f"{number:03}").write_text(str(number))
    with tarfile.open(fileobj=io.BytesIO(_pack(tmp_path, "logs/agent"))) as tar:
        members = tar.getmembers()
        assert [one.name for one in members] == [f"logs/agent/{number:03}" for number in range(100)]
        assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}


def test_a_hard_link_brings_in_neither_a_link_nor_a_pipe_that_was_left_out(tmp_path: Path) -> None:
    """Tar unpacks a hard link without a target as what it links to: what a host then writes there went to /etc."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, target in (
            ("out", tarfile.SYMTYPE, "/etc/passwd"),
            ("trajectory.json", tarfile.LNKTYPE, "out"),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("reward.txt", tarfile.LNKTYPE, "./pipe"),
            ("kept", tarfile.REGTYPE, ""),
            ("again", tarfile.LNKTYPE, "./kept"),
            ("inside", tarfile.SYMTYPE, "kept"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o644
            tar.addfile(member)
    packed.seek(0)
    assert _unpack(packed, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["again", "inside", "kept"]
    assert (tmp_path / "again").samefile(tmp_path / "kept")
