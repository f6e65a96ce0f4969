"""Settings of runs of earlier versions, by the names and in the forms that settings have now."""

from collections.abc import Collection, Mapping
from typing import Any

from harbortrainer.commands import COMMAND
from harbortrainer.config import CLIP_DEFAULTS
from harbortrainer.model_file import former
from harbortrainer.setting import shown


def current(saved: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return saved values by the `names` that settings have now, without those and their keys that were removed."""
    found = former(saved) | {**saved} | _joined(saved)
    return {n: _kept_keys(n, value) for n, value in found.items() if n in names and value != GONE.get(n, "")}


def removed(saved: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Return a line on saved settings that were removed since and were not off; [] = there are none."""
    values = {**saved, **{f"{name}.{key}": (saved.get(name) or {}).get(key) for name, key in _KEYS.items()}}
    gone = [f"{n}={shown(value)}" for n, value in values.items() if value and n not in names and n not in _TAKEN]
    gone += [f"{name}={value}" for name, value in GONE.items() if saved.get(name) == value]
    return [f"{', '.join(gone)}: without effect, as settings or values that were removed"] if gone else []


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
    return {key: one for key, one in value.items() if key != _KEYS.get(name)}


GONE = {"n_parallel_envs": "auto"}  # a value
_KEYS = {"outcome_policy": "suspect", "environment_kwargs": "keep_processes"}
_PARTS = {f"{role}_{part}" for role in ("user", "judge") for part in ("model", "url", "key", "kwargs")}
_JOINED = {"judge_weight", "taxonomy", "reward_weight", "advantage_baseline", *CLIP_DEFAULTS}
_TAKEN = {COMMAND, "display", *_JOINED, *_PARTS}
