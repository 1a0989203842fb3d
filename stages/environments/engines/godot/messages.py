"""Reads and writes the Godot addon's messages: JSON preceded by its length.

A message has one map per agent. The module reads all agents' lists of numbers in one pass; only if that fails does it
check them one by one, to name the agent, key and index of the error.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import GODOT, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.errors import MessageError, shown
from headrace.stages.environments.engines.godot.announcement import CHANNELS, is_picture

_NUMBER_KINDS = (int, float)
TRUNCATED, LAST = "TimeLimit.truncated", "terminal_observation"
"""Info keys of newer addons: whether a time limit truncated the episode, and the episode's last observation."""
OF_OBSERVATIONS = (
    "look for a division by zero or an error in its get_obs(), which the log of a debug export (--export-debug) shows"
)
"""Advice for messages: where to look for the cause of a wrong observation."""
NO_WINDOW = (
    "without a window, the engine renders nothing: set engine_settings.no_graphics to false (--viz), or run the "
    "command with xvfb-run on a machine without a display"
)
"""Text for messages: why cameras may fail, and the remedy."""
HANDSHAKE = orjson.dumps({"type": "handshake", "major_version": "0", "minor_version": "7"})
"""The first message to the game. An addon of a different version warns its user and never answers."""
ENV_INFO = orjson.dumps({"type": "env_info"})
RESET = orjson.dumps({"type": "reset"})
CLOSE = orjson.dumps({"type": "close"})
_NOT_FINITE = re.compile(rb"(?<=[\[,:\s])([+-]?(?:nan|inf|infinity|\d+(?:\.\d+)?e\d{4,}))(?=[\],}\s])", re.IGNORECASE)
_SHOWN = 60


class WrongColumn(Exception):
    """An agent's data in a message is invalid.

    The error text is the end of a sentence that begins with the game's name.
    """


class AgentColumns:
    """Reads and writes the parts of messages that belong to agents with the same spec.

    Args:
        spec: the spec of their behaviour.
        agents: [n] the agents' indices in messages.
    """

    def __init__(self, spec: BehaviorSpec, agents: NDArray[np.int64]) -> None:
        assert spec.spaces is not None, "made by `behavior_spec`"
        announced = spec.spaces[GODOT]
        self.spec = spec
        self.agents = agents
        self._choices = {key for key, space in announced["observations"].items() if space.get("space") == "discrete"}
        self._places = agents.tolist()
        # Python's own writer emits only ASCII, and Godot reads one byte per character.
        self._actions = [(f"{json.dumps(action['name'])}:".encode(), action) for action in announced["actions"]]

    def observations(self, observed: Sequence[Any]) -> tuple[Array, ...]:
        """Read the agents' observations: [n, *shape] for each observation of the spec.

        Args:
            observed: each agent's map in the message.

        Raises:
            WrongColumn: if a key is missing, or its value does not fit the announcement.
        """
        own = self._own(observed)
        return tuple(self._observation(observation, own) for observation in self.spec.observations)

    def rewards(self, values: Sequence[Any]) -> NDArray[np.float32]:
        """Read the agents' rewards [n].

        Raises:
            WrongColumn: if a reward is not a finite number.
        """
        own = self._own(values)
        try:
            rewards = _float32(own, len(own))
        except (OverflowError, TypeError, ValueError):
            rewards = np.full(len(own), np.nan, np.float32)
        if not np.isfinite(rewards).all():
            for agent, value in zip(self._places, own, strict=True):
                if not isinstance(value, _NUMBER_KINDS) or not np.isfinite(_float32([_float(value)], 1)[0]):
                    raise WrongColumn(
                        f"agent {agent} has reward {not_a_number(value)}; expected a finite number; look for a "
                        "division by zero or an error where the game computes rewards"
                    )
        return rewards

    def done(self, values: Sequence[Any]) -> NDArray[np.bool_]:
        """Return flags [n], true for agents whose episodes have ended.

        Raises:
            WrongColumn: if a value is not a boolean.
        """
        own = self._own(values)
        if {*map(type, own)} != {bool}:
            own = [truth(*each) for each in zip(self._places, repeat("done"), own)]
        return np.fromiter(own, np.bool_, len(own))

    def infos(self, values: Sequence[Any] | None, places: NDArray[np.intp]) -> list[Mapping[str, Any]]:
        """Return the infos of the agents at `places`; empty infos if the addon sends none.

        Raises:
            WrongColumn: if an info is not a map, or a known field has a wrong value.
        """
        if values is None:
            return [{} for _ in places]
        found: list[Mapping[str, Any]] = []
        for agent in (self._places[place] for place in places):
            info = info_of(agent, values[agent])
            truth(agent, TRUNCATED, info.get(TRUNCATED, False))
            last = info.get(LAST)
            if last is not None and not isinstance(last, Mapping):
                raise WrongColumn(f"agent {agent} has {shown(last)} as {LAST!r} in its info; expected a map of keys")
            found.append(info)
        return found

    def actions(self, batch: ActionBatch) -> list[bytes]:
        """Return the agents' actions [n] as JSON, one map per agent."""
        count = len(batch.continuous)
        parts: list[list[bytes]] = []
        column = branch = 0
        for key, action in self._actions:
            before = (b"," if parts else b"{") + key
            if action["action_type"] == "discrete":
                texts = orjson.dumps(batch.discrete[:, branch].tolist())[1:-1].split(b",")
                parts += [[before] * count, texts]
                branch += 1
            else:
                size = action["size"]
                numbers = np.ascontiguousarray(batch.continuous[:, column : column + size], np.float32)
                texts = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].split(b"],[")
                parts += [[before + b"["] * count, texts, [b"]"] * count]
                column += size
        parts.append([b"}"] * count)
        return list(map(b"".join, zip(*parts, strict=True)))

    def _own(self, values: Sequence[Any]) -> Sequence[Any]:
        places = self._places
        return values if len(places) == len(values) else [values[place] for place in places]

    def _observation(self, observation: ObservationSpec, own: Sequence[Any]) -> Array:
        key = observation.name
        try:
            found = [values[key] for values in own]
        except (KeyError, TypeError):
            agent, values = next(
                (agent, values)
                for agent, values in zip(self._places, own, strict=True)
                if not isinstance(values, Mapping) or key not in values
            )
            keys = ", ".join(values) if isinstance(values, Mapping) else shown(values)
            why = f"it has: {keys}" if keys else f"it has no observations: {OF_OBSERVATIONS}"
            raise WrongColumn(f"agent {agent} lacks the observation {key!r} ({why})") from None
        if key in self._choices:
            return self._one_hot(observation, found)
        if is_picture(key):
            return self._pictures(observation, found)
        return self._numbers(observation, found)

    def _numbers(self, observation: ObservationSpec, found: list[Any]) -> Array:
        size = observation.size
        try:
            if {*map(len, found)} != {size}:
                raise ValueError
            numbers = _float32(chain.from_iterable(found), size * len(found))
        except (OverflowError, TypeError, ValueError):
            numbers = np.concatenate(
                [self._one_by_one(*each, observation) for each in zip(self._places, found, strict=True)]
            )
        if not np.isfinite(numbers).all():
            row, index = divmod(int((~np.isfinite(numbers)).argmax()), size)
            raise WrongColumn(self._not_a_number(self._places[row], observation, index, [*_flat(found[row])][index]))
        return numbers.reshape(len(found), size)

    def _one_by_one(self, agent: int, value: Any, observation: ObservationSpec) -> Array:
        """Read one agent's numbers; the lists may be nested."""
        try:
            flat = [*_flat(value)] if isinstance(value, list) else None
        except RecursionError:
            flat = None
        if flat is None or len(flat) != observation.size:
            what = shown(value) if flat is None else f"{len(flat)} numbers"
            raise WrongColumn(
                f"agent {agent} has {what} as the observation {observation.name!r}; expected the {observation.size} "
                "numbers that it has announced"
            )
        for index, number in enumerate(flat):
            if not isinstance(number, _NUMBER_KINDS):
                raise WrongColumn(self._not_a_number(agent, observation, index, number))
        return _float32(map(_float, flat), len(flat))

    def _not_a_number(self, agent: int, observation: ObservationSpec, index: int, value: Any) -> str:
        return (
            f"agent {agent} has {not_a_number(value)} at index {index} of the observation {observation.name!r}; "
            f"expected finite numbers; {OF_OBSERVATIONS}"
        )

    def _one_hot(self, observation: ObservationSpec, found: list[Any]) -> Array:
        choices = observation.size
        rows = np.zeros((len(found), choices), np.float32)
        for row, (agent, value) in enumerate(zip(self._places, found, strict=True)):
            inner = value[0] if isinstance(value, list) and len(value) == 1 else value
            if not isinstance(inner, _NUMBER_KINDS) or inner != round(inner) or not 0 <= inner < choices:
                raise WrongColumn(
                    f"agent {agent} has {shown(value)} as the observation {observation.name!r}; expected a whole "
                    f"number from 0 to {choices - 1}"
                )
            rows[row, int(inner)] = 1
        return rows

    def _pictures(self, observation: ObservationSpec, found: list[Any]) -> Array:
        pictures = np.empty((len(found), *observation.shape), np.uint8)
        for row, (agent, text) in enumerate(zip(self._places, found, strict=True)):
            if not isinstance(text, str):
                raise WrongColumn(
                    f"agent {agent} has {shown(text)} as the image {observation.name!r}; expected the image's bytes "
                    f"as a hexadecimal string; {NO_WINDOW}"
                )
            try:
                pictures[row] = read_picture(text, observation.shape, observation.channels_last)
            except WrongPicture as error:
                raise WrongColumn(f"agent {agent} has an image {observation.name!r} {error}") from None
        return pictures


def info_of(agent: int, info: Any) -> dict[str, Any]:
    """Return an agent's info; an empty dict if it has none.

    Raises:
        WrongColumn: if the info is not a map.
    """
    if info is not None and not isinstance(info, dict):
        raise WrongColumn(f"agent {agent} has {shown(info)} as its info; expected a map of keys")
    return info or {}


def truth(agent: int, what: str, value: Any) -> bool:
    """Return a boolean, which may be sent as 0 or 1.

    Raises:
        WrongColumn: if the value is anything else.
    """
    if value not in (0, 1) or not isinstance(value, bool | int | float):
        raise WrongColumn(f"agent {agent} has {shown(value)} as {what!r}; expected true or false")
    return bool(value)


def action_message(texts: Sequence[bytes]) -> bytes:
    """Return the message with all agents' actions, in the agents' order."""
    return b'{"type":"action","action":[' + b",".join(texts) + b"]}"


def not_a_number(value: Any) -> str:
    """Describe a value that should be a number, for messages."""
    return "null (NaN or null in Godot)" if value is None else value if isinstance(value, str) else shown(value)


def _float32(numbers: Iterable[Any], count: int) -> NDArray[np.float32]:
    """Convert numbers to float32; numbers beyond its range become infinite, and a later check reports them."""
    with np.errstate(over="ignore"):
        return np.fromiter(numbers, np.float32, count)


def _float(number: Any) -> float:
    """Convert a number to a float. A number with too many digits becomes infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _flat(value: Any) -> chain[Any] | list[Any]:
    if isinstance(value, list):
        return chain.from_iterable(map(_flat, value))
    return [value]


class WrongPicture(ValueError):
    """The text is not the announced image. The error text is the end of a sentence that begins with "an image"."""


def read_picture(text: str, shape: tuple[int, ...], channels_last: bool) -> NDArray[np.uint8]:
    """Read an image of the given shape: [height, width, channels], or [channels, height, width].

    An engine may send an alpha channel that the addon has not announced, as Godot 4's Compatibility renderer does, or
    omit an announced one. An unannounced alpha channel is dropped. If an announced one is missing, all pixels become
    opaque.

    Raises:
        WrongPicture: if the text contains characters other than digits, or the image has a different size.
    """
    try:
        data = np.frombuffer(binascii.unhexlify(text), np.uint8)
    except ValueError as error:
        raise WrongPicture(f"that is not hexadecimal: {error}") from None
    if len(data) == math.prod(shape):
        return data.reshape(shape)
    if channels_last and shape[2] in CHANNELS:
        height, width, announced = shape
        sent = sum(CHANNELS) - announced
        if len(data) == height * width * sent:
            picture = np.full(shape, 255, np.uint8)
            picture[..., :3] = data.reshape(height, width, sent)[..., :3]
            return picture
    raise WrongPicture(
        f"of {len(data):,} bytes; expected {math.prod(shape):,} ({'×'.join(map(str, shape))}, as announced)"
    )


# Bytes. Godot's own JSON writer emits one byte per character if text is not UTF-8. It writes non-finite numbers as the
# C library prints them (`nan`, `-nan`, `inf`), which no JSON parser accepts. These become strings, so the code that
# reads numbers can name the value and its location.


class WireError(MessageError):
    """The bytes from the game are not a message."""


def call_of(method: str) -> bytes:
    """Return the message that calls a method on all agents."""
    return orjson.dumps({"type": "call", "method": method})


def read_message(content: bytes) -> dict[str, Any]:
    """Read a message from the game.

    Raises:
        WireError: if the bytes are not a message.
    """
    try:
        message = read_json(content)
    except WireError as error:
        raise WireError(f"sent {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError(f"sent JSON that is not a message (a map with a 'type'): {_excerpt(content)}")
    return message


def read_json(content: bytes) -> Any:
    """Parse JSON in Godot's form; non-finite numbers become strings.

    Raises:
        WireError: if the bytes are not JSON.
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
        raise WireError(f"invalid JSON: {error.msg} at byte {at}, near {_excerpt(content, at)}") from None


def _excerpt(content: bytes, at: int = 0) -> str:
    begin = max(0, at - _SHOWN // 2)
    dots = "…" if begin + _SHOWN < len(content) else ""
    return repr(content[begin : begin + _SHOWN].decode("latin-1")) + dots
