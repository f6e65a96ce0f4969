"""Databases of a conversation: whatever a tool does with them is seen, and the base stays."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from harbortrainer.bundled.tau.databases import State, changes, fresh


class Shop(BaseModel):
    orders: dict[str, dict[str, Any]]


def shop() -> Shop:
    return Shop(orders={"1": {"paid": False}, "2": {"paid": False}})


DONE: list[tuple[Callable[[dict[str, Any]], object], set[str]]] = [
    (lambda orders: orders["1"].update(paid=True), {"1"}),
    (lambda orders: orders.get("1", {}).update(paid=True), {"1"}),
    (lambda orders: orders.__setitem__("3", {"paid": True}), {"3"}),
    (lambda orders: orders.__delitem__("1"), {"1"}),
    (lambda orders: orders.pop("1"), {"1"}),
    (lambda orders: orders.pop("9", None), set()),
    (lambda orders: orders.popitem(), {"2"}),
    (lambda orders: orders.update({"1": {"paid": True}}, **{"3": {}}), {"1", "3"}),
    (lambda orders: orders.setdefault("1", {}).update(paid=True), {"1"}),
    (lambda orders: orders.setdefault("3", {}).update(paid=True), {"3"}),
    (lambda orders: orders.clear(), {"1", "2"}),
    (lambda orders: orders.__ior__({"3": {}}), {"3"}),
]


@pytest.mark.parametrize(("act", "changed"), DONE)
def test_what_a_tool_does_with_a_table_is_seen(act: Callable[[dict[str, Any]], object], changed: set[str]) -> None:
    base, plain = shop(), shop()
    mine = fresh(base)
    act(mine.orders)
    act(plain.orders)
    assert dict(mine.orders) == plain.orders, "as with a dict"
    found: State = changes(mine, base)
    assert {key for _, key in found} == changed
    assert base == shop(), "other conversations share it"
