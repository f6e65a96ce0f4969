"""A folder that is deeper than a path can be long."""

import os


def deepen(path: str | os.PathLike[str], depth: int, name: str) -> None:
    """Make folders of one name in each other."""
    folder = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
