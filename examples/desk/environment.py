"""The shop's orders, the tools that read and change them, and the policy; all in the form of a tau2 domain."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

PENDING, SHIPPED, DELIVERED = "pending", "shipped", "delivered"
POLICY = """You serve the customers of a shop.
- First find the customer's orders by name.
- Cancel an order or change its city only while it is pending.
- When a customer wants to cancel a shipped order, open a ticket for it.
- When a customer wants to cancel a delivered order, say that this is not possible and change nothing.
- Return an order only after it was delivered.
- When a customer asks where an order is, say its city."""

Status = Literal["pending", "shipped", "delivered", "cancelled", "returned"]


class Order(BaseModel):
    """An order. `user_id`: the customer's name; `city`: where it is, or goes to while it is pending."""

    user_id: str
    item: str
    status: Status
    city: str
    ticket: bool = False


class Shop(BaseModel):
    """The database: orders by id."""

    orders: dict[str, Order]


class ToolError(ValueError):
    """What a tool refuses; its text, one of ERRORS, is for the caller."""


UNKNOWN_TOOL, WRONG_ARGUMENTS = "there is no such tool", "wrong arguments"
UNKNOWN_NAME, UNKNOWN_ORDER = "no customer has this name", "there is no such order"
NOT_PENDING, NOT_DELIVERED = "the order is not pending", "the order was not delivered"
ERRORS = (UNKNOWN_TOOL, WRONG_ARGUMENTS, UNKNOWN_NAME, UNKNOWN_ORDER, NOT_PENDING, NOT_DELIVERED)
CANCELLED, RETURNED = "The order was cancelled.", "The order will be taken back."
CHANGED, OPENED = "The order goes to the new city.", "A ticket was opened."
RESULTS = (CANCELLED, RETURNED, CHANGED, OPENED)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. `id`, `requestor`: as tau2 has them; nothing here reads them."""

    name: str
    arguments: Mapping[str, Any]
    requestor: str = "assistant"
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    content: str
    error: bool


@dataclass(frozen=True, slots=True)
class Tool:
    openai_schema: dict[str, Any]


def _tool(name: str, description: str, *arguments: str) -> Tool:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return Tool({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})


TOOLS = (
    _tool("find_orders", "All orders of a customer.", "name"),
    _tool("cancel_order", "Cancel a pending order.", "order_id"),
    _tool("return_order", "Take back a delivered order.", "order_id"),
    _tool("change_city", "Send a pending order to another city.", "order_id", "city"),
    _tool("open_ticket", "Ask a colleague to look at an order.", "order_id"),
)
_ARGUMENTS = {
    tool.openai_schema["function"]["name"]: {*tool.openai_schema["function"]["parameters"]["required"]}
    for tool in TOOLS
}


class Tools:
    """The tools over one database. Each returns a text for the caller, or raises ToolError."""

    def __init__(self, db: Shop) -> None:
        self.db = db

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool by name with any arguments. Raises ToolError."""
        if name not in _ARGUMENTS:
            raise ToolError(UNKNOWN_TOOL)
        if arguments.keys() != _ARGUMENTS[name] or not all(isinstance(value, str) for value in arguments.values()):
            raise ToolError(WRONG_ARGUMENTS)
        return str(getattr(self, f"_{name}")(**arguments))

    def _find_orders(self, name: str) -> str:
        found = [
            {"item": order.item, "status": order.status, "order_id": order_id, "city": order.city}
            for order_id, order in self.db.orders.items()
            if order.user_id == name
        ]
        if not found:
            raise ToolError(UNKNOWN_NAME)
        return json.dumps(found)

    def _cancel_order(self, order_id: str) -> str:
        self._pending(order_id).status = "cancelled"
        return CANCELLED

    def _return_order(self, order_id: str) -> str:
        order = self._order(order_id)
        if order.status != DELIVERED:
            raise ToolError(NOT_DELIVERED)
        order.status = "returned"
        return RETURNED

    def _change_city(self, order_id: str, city: str) -> str:
        self._pending(order_id).city = city
        return CHANGED

    def _open_ticket(self, order_id: str) -> str:
        self._order(order_id).ticket = True
        return OPENED

    def _pending(self, order_id: str) -> Order:
        order = self._order(order_id)
        if order.status != PENDING:
            raise ToolError(NOT_PENDING)
        return order

    def _order(self, order_id: str) -> Order:
        if order_id not in self.db.orders:
            raise ToolError(UNKNOWN_ORDER)
        return self.db.orders[order_id]


class Environment:
    """The part of tau2's environment that a conversation needs; its user has no tools."""

    policy = POLICY
    user_tools = None

    def __init__(self, db: Shop) -> None:
        self.tools = Tools(db)

    def get_tools(self) -> tuple[Tool, ...]:
        return TOOLS

    def sync_tools(self) -> None:
        """Do nothing: there is one database."""

    def make_tool_call(self, tool_name: str, /, requestor: str = "assistant", **arguments: Any) -> str:
        """Run a tool. Raises ToolError."""
        return self.tools.run(tool_name, arguments)

    def get_response(self, call: ToolCall) -> ToolMessage:
        """Run a tool. Raises nothing for what a policy sends."""
        try:
            return ToolMessage(self.tools.run(call.name, call.arguments), error=False)
        except ToolError as error:
            return ToolMessage(f"Error: {error}", error=True)
