"""What a container's archives may do on this machine, and how much of them is read."""

import contextlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harbortrainer.docker.box.archive import ReadLimits, TooMuch, entry, fetch_file, fetch_folder
from tests.support.archives import Entry, leading_out, packed
from tests.support.fake_engine import use_engine

DIR, FILE, LINK, HARD = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Send = Callable[[bytes | Sequence[Entry]], None]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Send:
    """Let a daemon send this archive."""

    def give(content: bytes | Sequence[Entry]) -> None:
        whole = content if isinstance(content, bytes) else packed(content)

        def get(url: str, **_: Any) -> contextlib.AbstractContextManager[Any]:
            return contextlib.nullcontext(
                SimpleNamespace(status_code=200, raise_for_status=lambda: None, iter_content=pieces)
            )

        def pieces(size: int) -> Iterator[bytes]:
            return (whole[i : i + size] for i in range(0, len(whole), size))

        use_engine(monkeypatch, SimpleNamespace(base_url="", api_version="1", get=get))

    return give


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder beside `outside`, which has a file `old`."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "old").write_text("mine")
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def listed(target: Path) -> list[str]:
    """All entries; first checks that nothing was written beside, and that no link leads out."""
    outside = target.parent / "outside"
    assert {one.name: one.read_text() for one in outside.iterdir()} == {"old": "mine"}
    assert (outside / "old").stat().st_nlink == 1
    found = sorted(target.rglob("*"))
    links = [one for one in found if one.is_symlink()]
    assert all(one.is_dir() or one.is_file() for one in found if one not in links)
    assert not any(os.readlink(one).startswith("/") or ".." in os.readlink(one).split("/") for one in links)
    return [str(one.relative_to(target)) for one in found]


def test_links_over_long_paths_lead_nowhere(send: Send, target: Path) -> None:
    """CVE-2025-4517: tarfile of Python 3.12.1 writes and overwrites files of `outside`."""
    send(leading_out("../outside"))
    fetch_folder("c", "/logs", target)
    assert [one for one in listed(target) if not (target / one).is_symlink() and (target / one).is_file()] == [
        "harmless"
    ]


def test_links_and_special_files_are_left_out_with_what_is_below(send: Send, target: Path) -> None:
    out = str(target.parent / "outside")
    send(
        [
            ("./", DIR, b""),
            ("./link", LINK, out),
            ("./link/new", FILE, b"x"),
            ("./link", DIR, b""),
            ("./link/sub/new", FILE, b"x"),
            ("hard", HARD, f"{out}/old"),
            ("up", HARD, "../outside/old"),
            ("through", HARD, "link/old"),
            ("inside", LINK, "kept"),
            ("pipe", tarfile.FIFOTYPE, b""),
            ("of-pipe", HARD, "pipe"),
            ("null", tarfile.CHRTYPE, b""),
            ("disk", tarfile.BLKTYPE, b""),
            ("../outside/old", FILE, b"x"),
            ("a/../../outside/old", FILE, b"x"),
            (f"{out}/old", FILE, b"x"),
            ("p" * 256, FILE, b"x"),
            ("/".join(["q" * 100] * 11), FILE, b"x"),
            ("kept", FILE, b"text"),
            ("again", HARD, "./kept"),
        ]
    )
    fetch_folder("c", "/logs", target)
    assert listed(target) == ["again", "inside", "kept"]
    assert os.readlink(target / "inside") == "kept"
    assert (target / "again").read_text() == "text" and not (target / "again").samefile(target / "kept")


def test_what_is_there_is_replaced_and_never_followed(send: Send, target: Path) -> None:
    out = target.parent / "outside"
    (target / "file").symlink_to(out / "old")
    (target / "folder").symlink_to(out)
    (target / "hard").hardlink_to(out / "old")
    (target / "was-file").write_text("x")
    (target / "was-folder").mkdir()
    os.mkfifo(target / "was-pipe")
    (target / "stays").write_text("x")
    send(
        [
            ("file", FILE, b"1"),
            ("folder/old", FILE, b"2"),
            ("hard", FILE, b"3"),
            ("was-file/a", FILE, b"4"),
            ("was-folder", FILE, b"5"),
            ("was-pipe", FILE, b"6"),
            ("x", FILE, b"7"),
            ("x/", DIR, b""),
            ("x/b", FILE, b"8"),
        ]
    )
    fetch_folder("c", "/logs", target)
    assert listed(target) == [
        "file", "folder", "folder/old", "hard", "stays", "was-file", "was-file/a", "was-folder", "was-pipe", "x", "x/b",
    ]  # fmt: skip


def test_a_target_that_is_a_link_is_not_followed(send: Send, target: Path) -> None:
    (target / "link").symlink_to(target.parent / "outside")
    (target / "file").symlink_to(target.parent / "outside" / "old")
    send([("old", FILE, b"x")])
    with pytest.raises(NotADirectoryError):
        fetch_folder("c", "/logs", target / "link")
    fetch_file("c", "/old", target / "file")
    (target / "link").unlink()
    assert listed(target) == ["file"]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([("d/" * 1200, DIR, b"")], "/logs in container c has folders more than 128 deep"),
        ([(f"{i}", FILE, b"") for i in range(4)], "/logs in container c has more than 3 files and folders"),
        ([("a", FILE, b"12345"), ("b", HARD, "a"), ("c", FILE, b"1")], "/logs in container c is larger than"),
        ([("a", FILE, b"1" * 200_000)], "/logs in container c is larger than"),
    ],
)
def test_limits(send: Send, target: Path, entries: list[Entry], why: str) -> None:
    send(entries)
    with pytest.raises(TooMuch, match=f"^{re.escape(why)}"):
        fetch_folder("c", "/logs", target, limits=ReadLimits(10, 3, 60.0))


def test_a_sparse_member_counts_as_what_it_would_be(target: Path, send: Send) -> None:
    """GNU's old format: 512 bytes say that there is a hole of a tebibyte."""
    member = tarfile.TarInfo("hole")
    member.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (2**32, 0)  # a part of nothing at the end
    block[483:495] = b"%011o\0" % 2**32
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block[:512])
    send(bytes(block) + bytes(10240 - len(block)))
    with pytest.raises(RuntimeError, match="larger than 2,097,152 KiB"):
        fetch_folder("c", "/logs", target)


def test_an_archive_that_does_not_end_in_time(target: Path, send: Send) -> None:
    send([("left-out", FILE, bytes(300_000))])
    with pytest.raises(TooMuch, match="took longer than"):
        fetch_folder("c", "/logs", target, ["left-*"], limits=ReadLimits(10, 3, -1.0))


def test_only_files_that_are_chosen_come(send: Send, target: Path) -> None:
    send([("sub", DIR, b""), ("sub/a.log", FILE, b"1"), ("sub/a.txt", FILE, b"2"), ("b.txt", FILE, b"3")])
    fetch_folder("c", "/logs", target, chosen=lambda path: path.endswith(".txt"))
    assert listed(target) == ["b.txt", "sub", "sub/a.txt"]


def test_a_broken_archive_is_one_line(target: Path, send: Send) -> None:
    for content in (b"", b"x" * 1024, packed([("a", FILE, b"1" * 5000)])[:3000]):
        send(content)
        with pytest.raises(RuntimeError, match=r"^/logs in container c came as a broken archive$"):
            fetch_folder("c", "/logs", target)


def test_patterns_leave_out_what_tar_would(send: Send, target: Path) -> None:
    folders = ["a", "a/c", "a/node_modules", "b.log", "e", "e/c"]  # a walk names them first
    files = ["keep", "a/keep", "a/node_modules/x", "a/b.log", "b.log/keep", "a/c/d", "e/c/d", "cache"]
    send([*((f"./{name}/", DIR, b"") for name in folders), *((f"./{name}", FILE, b"") for name in files)])
    fetch_folder("c", "/logs", target, ["node_modules/", "*.log", "a/c", "./cache"])
    assert [one for one in listed(target) if (target / one).is_file()] == ["a/keep", "e/c/d", "keep"]


def test_one_file(send: Send, target: Path) -> None:
    send([("name", FILE, b"text")])
    fetch_file("c", "/in/name", target)
    fetch_file("c", "/in/name", target / "new" / "other")
    assert listed(target) == ["name", "new", "new/other"]
    for kind in (DIR, LINK, tarfile.FIFOTYPE):
        send([("name", kind, "/etc/passwd")])
        with pytest.raises(FileNotFoundError, match="is not a file"):
            fetch_file("c", "/in/name", target / "third")


def test_modes_and_times(send: Send, target: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, mode, when in (
            ("d", DIR, 0o1777, 1e9),
            ("d/setuid", FILE, 0o6777, 1e9),
            ("d/data", FILE, 0o077, -5.0),
            ("late", FILE, 0, 1e30),
            ("nan", FILE, 0, float("nan")),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.pax_headers = kind, mode, {"mtime": str(when)}
            tar.addfile(member)
    send(buffer.getvalue())
    fetch_folder("c", "/logs", target)
    found = {one: (target / one).stat() for one in listed(target)}
    assert {one: (oct(its.st_mode & 0o7777), its.st_mtime) for one, its in found.items() if one != "d"} == {
        "d/setuid": ("0o755", 1e9), "d/data": ("0o644", 0), "late": ("0o600", 2.0**33), "nan": ("0o600", 0),
    }  # fmt: skip
    assert found["d"].st_mtime == 1e9 and found["d"].st_mode & 0o7022 == 0


def test_an_entry_is_read_from_its_beginning(send: Send) -> None:
    send([("x", FILE, b"0123456789")])
    with entry("c", "/x") as (info, file):
        assert info.isfile() and file.read() == b"0123456789"
