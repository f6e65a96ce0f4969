"""Settings of runs of earlier versions, by the names and in the forms that settings have now."""

from collections.abc import Collection, Mapping
from typing import Any

from harbortrainer.config import CLIP_DEFAULTS
from harbortrainer.model_file import former
from harbortrainer.setting import FORMER, shown


def current(saved: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return saved values by the `names` that settings have now, without those and their keys that were removed."""
    found = former(saved) | {**saved} | _joined(saved)
    return {n: _kept_keys(n, value) for n, value in found.items() if n in names and value != GONE.get(n, ("",))[0]}


def removed(saved: Mapping[str, Any]) -> list[str]:
    """Return a line for each saved setting, or key of one, that was removed since and did not have its default."""
    keyed = {
        f"{name}.{key}": one for name, value in saved.items() if isinstance(value, dict) for key, one in value.items()
    }
    values = {**saved, **keyed}
    gone = [f"{n}={value} is no longer a value: {now}" for n, (value, now) in GONE.items() if saved.get(n) == value]
    return gone + [
        f"{name}={shown(values[name])} is no longer a setting and has no effect: {one.instead}"
        for name, one in FORMER.items()
        if not one.moved and name in values and values[name] not in (one.default, one.kept)
    ]


def _joined(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that two were in earlier versions, as JSON values."""
    found: dict[str, Any] = {}
    if saved.get("advantage") is None and "advantage_baseline" in saved:
        found["advantage"] = saved["advantage_baseline"]
    if saved.get("reward_weight") == 0:
        found["advantage"] = "none"
    given = [saved.get(name) for name in CLIP_DEFAULTS]
    if "clip_thresholds" not in saved and given != [None, None]:
        usual = CLIP_DEFAULTS.values()
        found["clip_thresholds"] = [one if one is not None else other for one, other in zip(given, usual, strict=True)]
    return found


def _kept_keys(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if f"{name}.{key}" not in FORMER}


GONE = {"n_parallel_envs": ("auto", "8 agents run at once; give another number")}
