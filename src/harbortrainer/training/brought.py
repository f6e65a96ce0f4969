"""The code from outside that a run uses, and its record, by which a continued run knows it again."""

from collections.abc import Collection

from harbortrainer.config import SETTINGS, Config
from harbortrainer.learning.agents import agents_of
from harbortrainer.learning.brought import functions
from harbortrainer.plugins import Brought, bring, known, plugin
from harbortrainer.tasks.task import Task

KEY = "brought"  # in effective.json, and in the plan of an evaluation


def brought(config: Config, tasks: Collection[Task]) -> dict[str, Brought]:
    """Return what the settings of a run name that is not this package's, by setting. Raises UserError."""
    found = functions(config)
    for name in dict.fromkeys(task.venue for task in tasks):
        found[f"tasks_dir={name}"] = plugin("venues", "tasks_dir", name)
    for name in (agents := [name for name in agents_of(config) if name != SETTINGS["agent"].default]):
        found["agent" if name == config.agent else f"agent={name}"] = plugin("agents", "agent", name)
    if agents:
        found |= {f"wires={name}": plugin("wires", "wires", name) for name in known("wires")}
    if config.hosts != "none":
        found["hosts"] = plugin("hosts", "hosts", config.hosts)
    if ":" in config.environment_type:
        found["environment_type"] = bring("environment_type", config.environment_type)
    return {field: one for field, one in found.items() if one.source}
