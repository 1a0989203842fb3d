"""Messages of Godot's addon as bytes: JSON behind its length, in the forms that Godot's own writer gives it.

The writer's text is one byte a character where it is not UTF-8, and numbers that are not finite stand there as the C
library prints them (`nan`, `-nan`, `inf`), which no JSON reader takes. They are read as words, so that who looks for a
number can tell what was sent and where.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from headrace.stages.environments.programs.errors import MessageError

HANDSHAKE = orjson.dumps({"type": "handshake", "major_version": "0", "minor_version": "7"})
"""Sent first; the addon warns its user of another version, and never answers."""
ENV_INFO = orjson.dumps({"type": "env_info"})
RESET = orjson.dumps({"type": "reset"})
CLOSE = orjson.dumps({"type": "close"})

_NOT_FINITE = re.compile(rb"(?<=[\[,:\s])([+-]?(?:nan|inf|infinity|\d+(?:\.\d+)?e\d{4,}))(?=[\],}\s])", re.IGNORECASE)
_SHOWN = 60


class WireError(MessageError):
    """Bytes that are no message."""


def call_of(method: str) -> bytes:
    """Return the message that calls a method of all agents."""
    return orjson.dumps({"type": "call", "method": method})


def read_message(content: bytes) -> dict[str, Any]:
    """Read a message of the game.

    Raises:
        WireError: if it is none.
    """
    try:
        message = read_json(content)
    except WireError as error:
        raise WireError(f"has sent what is {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError(f"has sent JSON that is no message (a map with a 'type'): {_excerpt(content)}")
    return message


def read_json(content: bytes) -> Any:
    """Read JSON as Godot writes it; numbers that are not finite are texts.

    Raises:
        WireError: if it is none.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode("utf-8")
    try:
        return orjson.loads(_NOT_FINITE.sub(rb'"\1"', content))
    except orjson.JSONDecodeError as error:
        at = min(error.pos, len(content))
        raise WireError(f"no JSON: {error.msg} at byte {at}, near {_excerpt(content, at)}") from None


def _excerpt(content: bytes, at: int = 0) -> str:
    begin = max(0, at - _SHOWN // 2)
    dots = "…" if begin + _SHOWN < len(content) else ""
    return repr(content[begin : begin + _SHOWN].decode("latin-1")) + dots
