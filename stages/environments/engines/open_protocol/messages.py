"""Reads and writes messages of the open protocol, in JSON or msgpack; a game's first message determines the format.

The first message, the hello, contains the game's name, and its behaviours' observations and actions. Later messages
contain the game's state (agents as columns, and statistics), and are answered with actions.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import msgpack
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.errors import MessageError, shown
from headrace.stages.environments.engines.rows import GameRows
from headrace.stages.environments.spaces.masks import MaskError, MaskReader

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


class _AnnouncedModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _AnnouncedObservation(_AnnouncedModel):
    """An observation: one length for a vector, two for a set of elements, three for an image."""

    name: str = ""
    shape: list[PositiveInt] = Field(min_length=1, max_length=3)
    type: Literal["float32", "uint8"] = "float32"
    channels: Literal["first", "last"] = "last"
    goal: bool = False


class _AnnouncedActions(_AnnouncedModel):
    """The number of continuous actions or their names, and the choices of each discrete action, in order or by name."""

    continuous: NonNegativeInt | list[str] = 0
    discrete: list[PositiveInt] | dict[str, PositiveInt] = []
    masked: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.continuous and not self.discrete:
            raise ValueError("expected at least one action")
        if self.masked and not self.discrete:
            raise ValueError("masked without discrete actions, and only those can be masked")
        return self

    def spec(self) -> ActionSpec:
        """Return the action spec."""
        names = tuple(self.continuous) if isinstance(self.continuous, list) else ()
        branch_names = tuple(self.discrete) if isinstance(self.discrete, dict) else ()
        return ActionSpec(
            self.continuous if isinstance(self.continuous, int) else len(names),
            tuple(self.discrete.values() if isinstance(self.discrete, dict) else self.discrete),
            masked=self.masked,
            continuous_names=names,
            branch_names=branch_names,
        )


class _AnnouncedBehavior(_AnnouncedModel):
    observations: list[_AnnouncedObservation] = Field(min_length=1)
    actions: _AnnouncedActions
    grouped: bool = False

    def spec(self, behavior_id: str) -> BehaviorSpec:
        """Return the behaviour's spec."""
        observations = tuple(
            ObservationSpec(
                seen.name or f"observation_{index}",
                tuple(seen.shape),
                seen.type,
                channels_last=len(seen.shape) == 3 and seen.channels == "last",
                goal=seen.goal,
            )
            for index, seen in enumerate(self.observations)
        )
        names = [observation.name for observation in observations]
        if len({*names}) != len(names):
            raise MessageError(f"announces the observations {names} in behaviors.{behavior_id}: expected unique names")
        return BehaviorSpec(behavior_id, observations, self.actions.spec(), grouped=self.grouped)


class _AnnouncedGame(_AnnouncedModel):
    type: Literal["hello"]
    protocol: int
    game: str = "game"
    behaviors: dict[Annotated[str, Field(pattern=r"^[^?]+(\?team=[0-9]+)?$")], _AnnouncedBehavior] = Field(min_length=1)


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
    try:
        announced = _AnnouncedGame.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise MessageError(f"sent a hello with {shown(first['input'])} as {where}: {first['msg']}") from None
    specs = {behavior_id: behavior.spec(behavior_id) for behavior_id, behavior in announced.behaviors.items()}
    teams: dict[str, BehaviorSpec] = {}
    for behavior_id, spec in specs.items():
        other = teams.setdefault(spec.name, spec)
        if (spec.observations, spec.actions) != (other.observations, other.actions):
            raise MessageError(
                f"announces different observations or actions in behaviors.{behavior_id} and "
                f"behaviors.{other.behavior_id}: teams share a policy, so their announcements must be the same"
            )
    return Hello(announced.game, specs)


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
    text = content.decode(errors="replace")
    begin = max(0, error.pos - _SHOWN // 2)
    what = f"invalid JSON: {error.msg} at character {error.pos}, in {text[begin : begin + _SHOWN]!r}"
    if text[error.pos :].lstrip("-").startswith(("NaN", "Infinity", "nan", "inf")):
        return f"{what}; a number in it is not finite: look for a division by zero"
    return what


_OF_DECIDING = ("ids", "observations", "rewards", "masks", "groups", "group_rewards")
_OF_ENDED = ("ids", "observations", "rewards", "truncated", "groups", "group_rewards")
_MOST_ID = 2**31 - 1
_WANTED = {
    "float32": "finite float32 numbers",
    "uint8": "whole numbers from 0 to 255",
    "int32": "whole numbers from 0 to 2³¹ - 1",
    "bool": "0 or 1",
}
"""Per dtype in Headrace: a description of the numbers that are valid in a column."""
_OF_BYTES = {"bool": "uint8"}
"""Per dtype in Headrace: the number type of columns sent as bytes, if it differs."""
_NO_IDS = np.zeros(0, np.int32)
_KEYS = ("type", "number", "agents", "statistics")


def read_rows(spec: BehaviorSpec, part: Any) -> GameRows:
    """Read one behaviour's part of a state: a map with `deciding`, `ended` or both.

    Raises:
        MessageError: if a key is missing or unknown, or does not fit the announcement.
    """
    where = f"agents.{spec.behavior_id}"
    if not isinstance(part, Mapping) or set(part) - {"deciding", "ended"}:
        raise MessageError(f"sent {shown(part)} as {where}: expected a map with 'deciding', 'ended' or both")
    ended = _Columns(spec, part.get("ended"), _OF_ENDED, f"{where}.ended")
    deciding = _Columns(spec, part.get("deciding"), _OF_DECIDING, f"{where}.deciding")
    both = (ended, deciding)
    return GameRows(
        ids=np.concatenate([columns.ids for columns in both]),
        rewards=np.concatenate([columns.numbers("rewards") for columns in both]),
        ended=len(ended.ids),
        interrupted=ended.flags("truncated"),
        observations=tuple(
            np.concatenate([columns.observation(index) for columns in both]) for index in range(len(spec.observations))
        ),
        action_masks=deciding.masks() if spec.actions.discrete_branches else None,
        group_ids=np.concatenate([columns.groups() for columns in both]),
        group_rewards=np.concatenate([columns.numbers("group_rewards") for columns in both]),
    )


def actions_part(ids: NDArray[np.int32], batch: ActionBatch) -> dict[str, Any]:
    """Return the actions [n] of the agents with these ids, in the form that messages use."""
    part: dict[str, Any] = {"ids": ids.tolist()}
    if batch.continuous.shape[1]:
        part["continuous"] = batch.continuous.tolist()
    if batch.discrete.shape[1]:
        part["discrete"] = batch.discrete.tolist()
    return part


class _Columns:
    """The columns of agents that need decisions, or of agents whose episodes have ended."""

    def __init__(self, spec: BehaviorSpec, part: Any, keys: tuple[str, ...], where: str) -> None:
        self._spec = spec
        self._where = where
        self._part: Mapping[str, Any] = {} if part is None else part
        self.ids = _NO_IDS
        if part is None:
            return
        if not isinstance(part, Mapping):
            raise MessageError(f"sent {shown(part)} as {where}: expected a map of columns")
        unknown = [str(key) for key in part if key not in keys]
        if unknown:
            raise MessageError(f"sent {', '.join(unknown)} in {where}: expected only the keys {', '.join(keys)}")
        self.ids = self._ids()

    def observation(self, index: int) -> Array:
        """Return one observation [n, *shape]."""
        spec, count = self._spec.observations[index], len(self.ids)
        sent = self._part.get("observations", [])
        if count and "observations" not in self._part:
            raise MessageError(f"sent {self._where} without 'observations'")
        if count and (not isinstance(sent, list) or len(sent) != len(self._spec.observations)):
            received = _counted(len(sent), "column") if isinstance(sent, list) else shown(sent)
            expected = f"{len(self._spec.observations)}, one for each observation that was announced"
            raise MessageError(f"sent {received} as {self._where}.observations: expected {expected}")
        what = f"observations[{index}] ({spec.name!r})"
        values = self._array(sent[index] if count else [], count * spec.size, spec.dtype, what)
        return values.reshape(count, *spec.shape)

    def numbers(self, key: str) -> NDArray[np.float32]:
        """Return a column of numbers [n]; zeros if the column is absent."""
        if key not in self._part:
            return np.zeros(len(self.ids), np.float32)
        return self._array(self._part[key], len(self.ids), "float32", key)

    def flags(self, key: str) -> NDArray[np.bool_]:
        """Return a boolean column [n]; false if the column is absent."""
        if key not in self._part:
            return np.zeros(len(self.ids), np.bool_)
        return self._array(self._part[key], len(self.ids), "bool", key)

    def groups(self) -> NDArray[np.int32]:
        """Return the group ids [n]; 0 if the column is absent."""
        if "groups" not in self._part:
            return np.zeros(len(self.ids), np.int32)
        groups = self._array(self._part["groups"], len(self.ids), "int32", "groups")
        if groups.any() and not self._spec.grouped:
            raise MessageError(
                f"sent groups of {self._spec.behavior_id}, which was announced without 'grouped': announce it with "
                "'grouped': true"
            )
        return groups

    def masks(self) -> NDArray[np.bool_]:
        """Return the masks [n, choices of all branches], true where allowed; all true if the column is absent."""
        actions, count = self._spec.actions, len(self.ids)
        if "masks" not in self._part:
            return np.ones((count, actions.mask_size), np.bool_)
        if not actions.masked:
            raise MessageError(
                f"sent {self._where}.masks, but {self._spec.behavior_id} was announced without masks: announce its "
                "actions with 'masked': true"
            )
        sent = self._part["masks"]
        if isinstance(sent, bytes | str):
            sent = self._array(sent, count * actions.mask_size, "bool", "masks").reshape(count, -1)
        try:
            return MaskReader.of_branches(actions).read(sent, count)
        except MaskError as error:
            where = f"as {self._where}.masks" if error.row is None else self._of(int(self.ids[error.row]))
            raise MessageError(f"sent a mask{error.at} {where} that {error.problem}") from error

    def _ids(self) -> NDArray[np.int32]:
        if "ids" not in self._part:
            raise MessageError(f"sent {self._where} without 'ids': expected the ids of its agents")
        sent = self._part["ids"]
        ids = self._from_bytes(sent, "int32", "ids") if isinstance(sent, bytes | str) else _numbers(sent)
        if not len(ids):
            return _NO_IDS
        if ids.dtype.kind not in "if" or ids.ndim != 1 or not _are(ids, "int32").all():
            raise MessageError(
                f"sent {shown(sent)} as {self._where}.ids: expected a list of {_WANTED['int32']}, or their bytes"
            )
        distinct, counts = np.unique(ids, return_counts=True)
        if len(distinct) != len(ids):
            raise MessageError(f"sent agent {distinct[counts.argmax()]} twice in {self._where}.ids")
        return ids.astype(np.int32)

    def _array(self, sent: Any, size: int, dtype: str, what: str) -> Array:
        """Return a column's numbers as a flat array, from lists of numbers or bytes (little-endian, base64 in JSON)."""
        count = len(self.ids)
        per_agent = size // max(1, count)
        if isinstance(sent, bytes | str):
            values = self._from_bytes(sent, dtype, what)
            received = f"{len(values)} numbers ({_OF_BYTES.get(dtype, dtype)})"
        elif isinstance(sent, list):
            values = _numbers(sent)
            if values.dtype.kind not in "iufb" and values.size:
                raise self._no_numbers(sent, per_agent, dtype, what)
            if len(sent) != count:
                raise MessageError(
                    f"sent {_counted(len(sent), 'entry', 'entries')} as {self._where}.{what}: expected one for each of "
                    f"{_counted(count, 'agent')}"
                )
            received = _counted(values.size, "number")
        else:
            raise MessageError(f"sent {shown(sent)} as {self._where}.{what}: expected a list of numbers, or bytes")
        if values.size != size:
            share = f", {per_agent} for each of {_counted(count, 'agent')}" if count else ""
            raise MessageError(f"sent {received} as {self._where}.{what}: expected {size} in total{share}")
        flat = values.reshape(-1)
        if flat.dtype == np.uint8 and dtype == "uint8":
            return flat  # all bytes of an image are valid
        good = _are(flat, dtype)
        if not good.all():
            at = int(good.argmin())
            agent, index = int(self.ids[at // per_agent]), at % per_agent
            raise MessageError(
                f"sent {flat[at]} at index {index} of {what} {self._of(agent)}; expected {_WANTED[dtype]}"
            )
        return flat.astype(dtype, copy=False)

    def _no_numbers(self, sent: list[Any], per_agent: int, dtype: str, what: str) -> MessageError:
        """Return the error for a list with values other than numbers, or with lists of different lengths."""
        for agent, row in zip(self.ids.tolist(), sent, strict=False):
            flat = [*_flat(row)]
            for index, value in enumerate(flat):
                if not isinstance(value, int | float):
                    received = "null" if value is None else repr(value)
                    return MessageError(
                        f"sent {received} at index {index} of {what} {self._of(agent)}; expected {_WANTED[dtype]}"
                    )
            if len(flat) != per_agent:
                return MessageError(
                    f"sent {_counted(len(flat), 'number')} as {what} {self._of(agent)}; expected {per_agent}"
                )
        return MessageError(f"sent values in {self._where}.{what} that are not numbers")

    def _from_bytes(self, sent: bytes | str, dtype: str, what: str) -> Array:
        try:
            content = binascii.a2b_base64(sent, strict_mode=True) if isinstance(sent, str) else sent
            return np.frombuffer(content, np.dtype(_OF_BYTES.get(dtype, dtype)).newbyteorder("<"))
        except ValueError as error:
            raise MessageError(
                f"sent bytes as {self._where}.{what} that can't be read as {_OF_BYTES.get(dtype, dtype)}: {error}"
            ) from None

    def _of(self, agent: int) -> str:
        return f"for agent {agent} of {self._spec.behavior_id}"


def _numbers(sent: Any) -> NDArray[Any]:
    """Convert a list of numbers, or of lists of numbers, to an array. If that fails, return an array of objects."""
    try:
        return np.asarray(sent if isinstance(sent, list) else [None])
    except (ValueError, OverflowError):  # lists of different lengths; beyond 64 bits
        return np.asarray(sent, object)


def _are(values: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    """Return flags, true for the numbers that are valid according to `_WANTED`."""
    if dtype == "float32":
        return np.isfinite(values.astype(np.float32, copy=False))
    if dtype == "bool":
        return np.isin(values, (0, 1))
    inside: NDArray[np.bool_] = (values >= 0) & (values <= (255 if dtype == "uint8" else _MOST_ID))
    return inside & np.equal(values, np.floor(values)) if values.dtype.kind == "f" else inside


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value


@dataclass(frozen=True, slots=True)
class SentState:
    """The content of a game's state message."""

    rows: Mapping[str, GameRows]
    """The rows, keyed by behaviour id; behaviours without rows are absent."""
    statistics: Mapping[str, tuple[float, ...]]


def read_state(message: Mapping[str, Any], specs: Mapping[str, BehaviorSpec]) -> SentState:
    """Read a `state` message.

    Args:
        message: the game's message.
        specs: the specs that its hello announced, keyed by behaviour id.

    Raises:
        MessageError: if a key is unknown, or does not fit the announcement.
    """
    unknown = [str(key) for key in message if key not in _KEYS]
    if unknown:
        raise MessageError(f"sent {', '.join(unknown)} in a state: expected only the keys {', '.join(_KEYS)}")
    agents = message.get("agents", {})
    if not isinstance(agents, Mapping):
        raise MessageError(f"sent {repr(agents)[:60]} as agents: expected a map with a key for each behaviour")
    rows = {}
    for behavior_id, part in agents.items():
        spec = specs.get(behavior_id)
        if spec is None:
            announced = ", ".join(specs)
            raise MessageError(f"sent agents of {behavior_id!r}, which its hello did not announce ({announced})")
        columns = read_rows(spec, part)
        if len(columns):
            rows[behavior_id] = columns
    return SentState(rows, _statistics(message.get("statistics", {})))


def _statistics(sent: Any) -> dict[str, tuple[float, ...]]:
    if not isinstance(sent, Mapping):
        raise MessageError(f"sent {repr(sent)[:60]} as statistics: expected a map of numbers, or lists of numbers")
    statistics = {}
    for name, value in sent.items():
        values = value if isinstance(value, list) else [value]
        if not all(_is_number(number) for number in values):
            raise MessageError(f"sent {repr(value)[:60]} as the statistic {name!r}: expected finite numbers")
        if values:
            statistics[str(name)] = tuple(map(float, values))
    return statistics


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
