"""A tar.gz of large files that do not compress, as fast as memory: stored, in gzip members made by several threads.

Upstream: skyrl/utils/storage.py, pack_and_upload copies them through one gzip stream in one thread. Any reader of gzip
reads members one after another as one file.
"""

import os
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path

CHUNK = 4 << 20  # bytes in a member
THREADS = min(8, os.cpu_count() or 1)


def pack(place: Path, files: Mapping[str, bytes | memoryview]) -> None:
    """Raises OSError."""
    with ThreadPoolExecutor(THREADS) as pool, place.open("wb") as out:
        for some in batched(chunks(files), 2 * THREADS):  # no second copy of all of it in memory
            for member in pool.map(stored, some):
                out.write(member)


def stored(data: bytes | memoryview) -> bytes:
    return zlib.compress(data, level=0, wbits=31)


def chunks(files: Mapping[str, bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Of a tar archive of these files."""
    for name, data in files.items():
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = len(data), int(time.time())
        yield entry.tobuf()
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]
        yield bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
