"""The build context of a task: which files belong to it, and their digest."""

import hashlib
import os
from pathlib import Path

from docker.utils.build import exclude_paths

_digests: dict[Path, tuple[int, str]] = {}  # environment folder -> (hash of its stat results, content digest)


def content_digest(environment_dir: Path) -> str:
    """SHA-256 over names, kinds, modes and contents of the build context; read again only when a stat changed."""
    paths = _context(environment_dir)
    stats = [(str(path), *_stat(path)) for path in paths]
    fingerprint = hash(tuple(stats))
    known = _digests.get(environment_dir)
    if known and known[0] == fingerprint:
        return known[1]
    digest = hashlib.sha256()
    for path in paths:
        kind = "l" if path.is_symlink() else "d" if path.is_dir() else "f"
        mode = path.lstat().st_mode & 0o777
        content = os.readlink(path).encode() if kind == "l" else path.read_bytes() if kind == "f" else b""
        digest.update(f"{path.relative_to(environment_dir).as_posix()}\0{kind}{mode:o}\0{len(content)}\0".encode())
        digest.update(content)
    _digests[environment_dir] = fingerprint, digest.hexdigest()
    return digest.hexdigest()


def _context(environment_dir: Path) -> list[Path]:
    ignore = environment_dir / ".dockerignore"
    patterns = ignore.read_text().splitlines() if ignore.exists() else []
    patterns = [line.strip() for line in patterns if line.strip() and not line.startswith("#")]
    return [environment_dir / name for name in sorted(exclude_paths(str(environment_dir), patterns)) if name]


def _stat(path: Path) -> tuple[int, int, int]:
    stat = path.lstat()
    return stat.st_mode, stat.st_size, stat.st_mtime_ns
