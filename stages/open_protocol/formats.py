"""Messages of the open protocol as bytes: JSON, or msgpack, as each game chooses by its first message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgpack
import orjson

from stages.programs.errors import MessageError

VERSION = 1
"""Of the protocol."""

Format = Literal["json", "msgpack"]

_SHOWN = 60


def format_of(content: bytes) -> Format:
    """The format of a message's bytes: a map in JSON begins with a brace, one in msgpack never does."""
    return "json" if content[:64].lstrip()[:1] == b"{" else "msgpack"


def encode(message: Mapping[str, Any], form: Format) -> bytes:
    """Write a message."""
    if form == "json":
        return orjson.dumps(message)
    return bytes(msgpack.packb(message))


def decode(content: bytes) -> dict[str, Any]:
    """Read a message.

    Raises:
        MessageError: if it is none.
    """
    form = format_of(content)
    try:
        message = orjson.loads(content) if form == "json" else msgpack.unpackb(content, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # of both libraries; TypeError: a map as a key
        name = "JSON" if form == "json" else "msgpack"
        raise MessageError(f"has sent what is no {name}: {error}; it begins with {content[:_SHOWN]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError(f"has sent what is no message (a map with a 'type'): {repr(message)[:_SHOWN]}")
    return message
