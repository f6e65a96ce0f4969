"""A domain's database for one trial in 0.1 ms: entries are copied when a tool first asks for them by key."""

import copy
import json
from collections.abc import MutableMapping
from typing import Any, Self

State = dict[tuple[str, str], str | None]  # (field, key) -> dump of what differs from the base; None = it was deleted


class CopyOnRead(dict[str, Any]):
    """A shallow copy of a base dict. A value is copied when it is first read by key; loops see the base's values."""

    __slots__ = ("own",)

    def __init__(self, base: dict[str, Any]) -> None:
        super().__init__(base)
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self.own.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 -- this is `get`

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.own.add(key)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.own.add(key)

    # dict's own pass the methods above by
    clear = MutableMapping.clear
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def pop(self, key: str, *default: Any) -> Any:
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError("popitem(): dictionary is empty")

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self


def fresh(base: Any) -> Any:
    """Get a database of the type of `base`, whose changes stay apart. Its fields that are no dicts are copied whole."""
    fields = {name: CopyOnRead(value) if isinstance(value, dict) else copy.deepcopy(value) for name, value in base}
    return type(base).model_construct(**fields)


def changes(database: Any, base: Any) -> State:
    """Return what differs from the base: equal for two databases exactly when tau2's hashes of them are equal."""
    found: State = {}
    for field, before in base:
        now = getattr(database, field)
        if not isinstance(now, dict):
            if (dump := dumped(now)) != dumped(before):
                found[field, ""] = dump
            continue
        for key in now.own if isinstance(now, CopyOnRead) else now.keys() | before.keys():
            if key not in now:
                found[field, key] = None
            elif (dump := dumped(dict.__getitem__(now, key))) != (dumped(before[key]) if key in before else None):
                found[field, key] = dump
    return found


def dumped(value: Any) -> str:
    """Get JSON as tau2 hashes it: keys sorted, anything else by `str`. Tools may have stored values of a wrong type."""
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
