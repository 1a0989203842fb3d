"""Messages of the open protocol as bytes: JSON, or msgpack, as each game chooses by its first message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgpack
import orjson

from headrace.stages.environments.programs.errors import MessageError

VERSION = 1
"""Of the protocol."""

Format = Literal["json", "msgpack"]

_SHOWN = 60
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
"""First bytes of maps in msgpack; no text begins with one."""


def format_of(content: bytes) -> Format:
    """The format of a message's bytes, by the first one."""
    return "msgpack" if content and content[0] in _MAPS else "json"


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
    except orjson.JSONDecodeError as error:
        raise MessageError(f"has sent {_no_json(content, error)}") from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a map as a key
        raise MessageError(f"has sent what is no msgpack: {error}; it begins with {content[:_SHOWN]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError(f"has sent what is no message (a map with a 'type'): {repr(message)[:_SHOWN]}")
    return message


def _no_json(content: bytes, error: orjson.JSONDecodeError) -> str:
    if not content:
        return "an empty message"
    try:
        text = content.decode()
    except UnicodeDecodeError as broken:
        at, excerpt = broken.start, content[max(0, broken.start - _SHOWN // 2) :][:_SHOWN]
        return f"what is neither JSON, which is UTF-8, nor msgpack: byte {at} is no character, in {excerpt!r}"
    begin = max(0, error.pos - _SHOWN // 2)
    said = f"what is no JSON: {error.msg} at character {error.pos}, in {text[begin : begin + _SHOWN]!r}"
    if text[error.pos :].lstrip("-").startswith(("NaN", "Infinity", "nan", "inf")):
        return f"{said}; a number is not finite, look for a division by zero"
    return said
