"""Reads and writes messages of the open protocol, in JSON or msgpack; a game's first message determines the format.

The first message, the hello, contains the game's name, and its behaviours' observations and actions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import orjson

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.errors import MessageError

_TYPES = ("float32", "uint8")
_MOST_NUMBERS = 2**26
_TEAM = re.compile(r"[^?]+\?team=[0-9]+")
VERSION = 1
"""Version of the open protocol."""
Format = Literal["json", "msgpack"]
_SHOWN = 60
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
"""First bytes of maps in msgpack; text never begins with them."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A game's hello message, decoded."""

    game: str
    specs: dict[str, BehaviorSpec]
    """The specs, keyed by behaviour id."""


def read_hello(message: Mapping[str, Any]) -> Hello:
    """Read a `hello` message.

    Raises:
        MessageError: if a key is missing, unknown or malformed, or the version is not supported.
    """
    if message.get("protocol") != VERSION:
        raise MessageError(
            f"speaks version {message.get('protocol')!r} of the open protocol; expected {VERSION} as 'protocol' in its "
            "hello"
        )
    _known(message, ("type", "protocol", "game", "behaviors"), "hello")
    behaviors = message.get("behaviors")
    if not isinstance(behaviors, Mapping) or not behaviors:
        raise MessageError("announces no behaviors in its hello: expected a map with at least one")
    specs = {str(behavior_id): _spec(str(behavior_id), each) for behavior_id, each in behaviors.items()}
    _check_teams(specs)
    return Hello(str(message.get("game", "game")), specs)


def _spec(behavior_id: str, announced: Any) -> BehaviorSpec:
    where = f"behaviors.{behavior_id}"
    if not isinstance(announced, Mapping):
        raise MessageError(f"announces {announced!r} as {where}: expected a map with observations and actions")
    _known(announced, ("observations", "actions", "grouped"), where)
    observations = announced.get("observations")
    if not isinstance(observations, list) or not observations:
        raise MessageError(f"announces no {where}.observations: expected a list with at least one")
    spec = BehaviorSpec(
        behavior_id,
        tuple(_observation(each, index, where) for index, each in enumerate(observations)),
        _actions(announced.get("actions"), where),
        grouped=bool(announced.get("grouped", False)),
    )
    if "?" in behavior_id and _TEAM.fullmatch(behavior_id) is None:
        raise MessageError(
            f"announces the behaviour {behavior_id!r}: expected a name, or a name with a team, such as Name?team=1"
        )
    names = [observation.name for observation in spec.observations]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise MessageError(f"announces two observations {twice!r} in {where}: expected unique names")
    return spec


def _check_teams(specs: Mapping[str, BehaviorSpec]) -> None:
    """Reject teams of one behaviour with different observations or actions, because they share a policy."""
    first: dict[str, BehaviorSpec] = {}
    for behavior_id, spec in specs.items():
        other = first.setdefault(spec.name, spec)
        for what in ("observations", "actions"):
            if getattr(spec, what) != getattr(other, what):
                raise MessageError(
                    f"announces different {what} in behaviors.{behavior_id} and behaviors.{other.behavior_id}: teams "
                    "share a policy, so their announcements must be the same"
                )


def _observation(announced: Any, index: int, behavior: str) -> ObservationSpec:
    where = f"{behavior}.observations[{index}]"
    if not isinstance(announced, Mapping):
        raise MessageError(f"announces {announced!r} as {where}: expected a map with a shape")
    _known(announced, ("name", "shape", "type", "channels", "goal"), where)
    shape = announced.get("shape")
    whole = isinstance(shape, list) and all(_is_whole(length) and length > 0 for length in shape)
    if not whole or not 1 <= len(shape or ()) <= 3 or math.prod(shape or ()) > _MOST_NUMBERS:
        raise MessageError(
            f"announces {shape!r} as {where}.shape: expected one number for a vector, two for a set of elements, three "
            "for an image"
        )
    number = announced.get("type", "float32")
    if number not in _TYPES:
        raise MessageError(f"announces {number!r} as {where}.type: expected {' or '.join(_TYPES)}")
    channels = announced.get("channels", "last")
    if channels not in ("first", "last"):
        raise MessageError(f"announces {channels!r} as {where}.channels: expected first or last")
    assert shape is not None
    picture = len(shape) == 3
    return ObservationSpec(
        str(announced.get("name", f"observation_{index}")),
        tuple(shape),
        number,
        channels_last=picture and channels == "last",
        goal=bool(announced.get("goal", False)),
    )


def _actions(announced: Any, behavior: str) -> ActionSpec:
    where = f"{behavior}.actions"
    if not isinstance(announced, Mapping):
        found = "nothing" if announced is None else repr(announced)
        raise MessageError(f"announces {found} as {where}: expected a map with 'continuous', 'discrete' or both")
    _known(announced, ("continuous", "discrete", "masked"), where)
    continuous, discrete = announced.get("continuous", 0), announced.get("discrete", [])
    names: tuple[str, ...] = ()
    if isinstance(continuous, list):
        names, continuous = tuple(map(str, continuous)), len(continuous)
    if not _is_whole(continuous) or continuous < 0:
        raise MessageError(
            f"announces {continuous!r} as {where}.continuous: expected the number of continuous actions, or their names"
        )
    branch_names: tuple[str, ...] = ()
    if isinstance(discrete, Mapping):
        branch_names, discrete = tuple(map(str, discrete)), list(discrete.values())
    if not isinstance(discrete, list) or not all(_is_whole(choices) and choices > 0 for choices in discrete):
        raise MessageError(
            f"announces {discrete!r} as {where}.discrete: expected the number of choices of each discrete action, as a "
            "list or by name"
        )
    if not continuous and not discrete:
        raise MessageError(f"announces no {where}: expected at least one action")
    masked = bool(announced.get("masked", False))
    if masked and not discrete:
        raise MessageError(f"announces {where}.masked without discrete actions, and only those can be masked")
    return ActionSpec(continuous, tuple(discrete), masked=masked, continuous_names=names, branch_names=branch_names)


def _known(found: Mapping[Any, Any], expected: Collection[str], where: str) -> None:
    unknown = [str(key) for key in found if key not in expected]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise MessageError(f"announces unknown keys ({names}) in {where}: expected only {', '.join(expected)}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def format_of(content: bytes) -> Format:
    """Return a message's format, judged by its first byte."""
    return "msgpack" if content and content[0] in _MAPS else "json"


def encode(message: Mapping[str, Any], form: Format) -> bytes:
    """Encode a message as bytes."""
    if form == "json":
        return orjson.dumps(message)
    return bytes(msgpack.packb(message))


def decode(content: bytes) -> dict[str, Any]:
    """Decode a message from bytes.

    Raises:
        MessageError: if the bytes are not a message.
    """
    form = format_of(content)
    try:
        message = orjson.loads(content) if form == "json" else msgpack.unpackb(content, strict_map_key=False)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"sent {_no_json(content, error)}") from None
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a map as a key
        raise MessageError(f"sent invalid msgpack: {error}; it begins with {content[:_SHOWN]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError(f"sent something that is not a message (a map with a 'type'): {repr(message)[:_SHOWN]}")
    return message


def _no_json(content: bytes, error: orjson.JSONDecodeError) -> str:
    if not content:
        return "an empty message"
    try:
        text = content.decode()
    except UnicodeDecodeError as broken:
        at, excerpt = broken.start, content[max(0, broken.start - _SHOWN // 2) :][:_SHOWN]
        return f"data that is neither JSON (in UTF-8) nor msgpack: byte {at} is not a character, in {excerpt!r}"
    begin = max(0, error.pos - _SHOWN // 2)
    what = f"invalid JSON: {error.msg} at character {error.pos}, in {text[begin : begin + _SHOWN]!r}"
    if text[error.pos :].lstrip("-").startswith(("NaN", "Infinity", "nan", "inf")):
        return f"{what}; a number in it is not finite: look for a division by zero"
    return what
