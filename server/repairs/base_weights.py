"""A digest of the served model's weights, by which a run notices that a server has others under the same name."""

from functools import cache
from hashlib import sha256
from pathlib import Path

BLOCK, BLOCKS = 1 << 16, 1024  # bytes read at once, and at how many places of a file: one of 64 MiB is read whole


@cache
def base_weights(folder: Path) -> str:
    """Return the digest of all weights in a folder, "" without any."""
    files = sorted(folder.glob("*.safetensors"))
    digest = sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for at in range(0, size, max(BLOCK, size // BLOCKS)):
                file.seek(at)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:12] if files else ""
