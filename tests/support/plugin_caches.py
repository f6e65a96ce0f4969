"""What a process keeps of plug-ins."""

from harbortrainer.model_api.service import wires
from harbortrainer.plugins import bring, plugin
from harbortrainer.venues.harbor.program import PROGRAMS


def forget() -> None:
    for cached in (bring, plugin, wires):
        cached.cache_clear()
    PROGRAMS.clear()
