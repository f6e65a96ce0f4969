"""What a user allows for a task beside what it asks for."""

from pathlib import Path


def allowed(task: Path) -> frozenset[str]:
    return frozenset()
