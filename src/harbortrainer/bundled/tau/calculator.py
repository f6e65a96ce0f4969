"""A guard of tau2's tool `calculate`, which is `eval` over digits and `+-*/(). `: `9**9**9` would hang the process.

An expression of numbers is computed here first, operator by operator, and refused before one gets large. Everything
else is left to the tool, so that its answers and its errors stay what they are.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

MOST_BITS = 20_000  # of an integer on the way; a float has 1,024
MOST_CHARACTERS = 2_000  # beyond that the tool would compile for long
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


class TooLarge(Exception):
    """A number on the way has too many digits."""


def refusal(arguments: Mapping[str, Any]) -> str | None:
    """Return why `calculate` may not run with these arguments; None = it may."""
    expression = arguments.get("expression")
    if not isinstance(expression, str):
        return None
    if len(expression) > MOST_CHARACTERS:
        return f"Expression longer than {MOST_CHARACTERS} characters"
    try:
        _value(ast.parse(expression.strip(), mode="eval").body)
    except TooLarge:
        return "int too large to convert to float"  # as Python says of a large integer that it has computed
    except (SyntaxError, ArithmeticError, TypeError, ValueError, RecursionError, MemoryError):
        return None  # the tool fails in the same way, as quickly
    return None


def _value(node: ast.AST) -> Any:
    """Raises TooLarge, and what Python raises for the expression."""
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, int | float):  # `'a' * 10**10` would take 10 GB here; the tool refuses it
            raise TypeError("no number")
        return node.value
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _refuse_large(left, right)
        value = _OPERATORS[type(node.op)](left, right)
        if isinstance(value, int) and value.bit_length() > MOST_BITS:  # a product of 200 such powers takes seconds
            raise TooLarge
        return value
    for child in ast.iter_child_nodes(node):  # `2(3)`: Python computes the parts before it fails
        if isinstance(child, ast.expr):
            _value(child)
    raise TypeError("not arithmetic")


def _refuse_large(base: Any, exponent: Any) -> None:
    if not isinstance(base, int) or not isinstance(exponent, int) or abs(base) < 2:  # powers of 0 and 1 stay small
        return
    if base.bit_length() * exponent > MOST_BITS:
        raise TooLarge
