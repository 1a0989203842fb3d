"""Reads Python expressions in the zoo's files, such as `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`.

The zoo evaluates them. Here they are only parsed: a name stays a name, and anything that is neither a name nor a
literal is refused.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

_LONGEST = 10_000
_MOST = 2**63
_EXPECTED = "expected dict(…), lists, numbers, strings and names such as nn.ReLU"


class Name(str):
    """A dotted Python name."""

    __slots__ = ()


def read_expression(text: str) -> Any:
    """Read an expression made of maps, lists, scalars and `Name`s.

    Raises:
        ValueError: if the text contains anything else; the message completes "<key>: …".
    """
    if len(text) > _LONGEST:
        raise ValueError(f"has {len(text):,} characters; expected at most {_LONGEST:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about unknown escapes
            return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"is not a Python expression ({type(error).__name__}); {_EXPECTED}") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | float() | str()):
            return node.value
        case ast.Constant(value=int() as number) if abs(number) < _MOST:
            return number
        case ast.List() | ast.Tuple():
            return [_value(item) for item in node.elts]
        case ast.Dict():
            return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return {_key(word.arg): _value(word.value) for word in node.keywords}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name():
            return Name(node.id)
        case ast.Attribute():
            return Name(f"{_value(node.value)}.{node.attr}")
    raise ValueError(f"contains a {type(node).__name__}, which is not evaluated; {_EXPECTED}")


def _key(key: ast.expr | str | None) -> str:
    found = key.value if isinstance(key, ast.Constant) else key
    if isinstance(found, str):
        return found
    raise ValueError(f"has a key that is not a string; {_EXPECTED}")
