"""What a process keeps of plug-ins."""

from harbortrainer.model_api.service import wires
from harbortrainer.plugins import bring, plugin
from harbortrainer.venues.harbor.container_agent import AGENTS


def forget() -> None:
    for cached in (bring, plugin, wires):
        cached.cache_clear()
    AGENTS.clear()
