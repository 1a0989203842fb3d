"""Reads and writes the Godot addon's messages: JSON preceded by its length.

A message has one map per agent. The module reads all agents' lists of numbers in one pass; only if that fails does it
check them one by one, to name the agent, key and index of the error.

A game's announcement of its agents gives the behaviours: specs, teams and groups. Five generations of the addon
announce spaces in different forms, which the fields present identify. The spaces are announced for all agents together
or for each agent, with or without policy names. The oldest addons announce only the size of the single observation.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import GODOT, ActionSpec, BehaviorSpec, ObservationSpec, behavior_name
from headrace.stages.environments.engines.errors import GameRefused, MessageError, shown
from headrace.stages.environments.spaces.masks import MASK

CHANNELS = (3, 4)
"""Channel counts of the engine's images: RGB and RGBA."""
SHARED_POLICY = "shared_policy"
"""Policy name of agents that announce none."""
_PICTURE = "2d"
"""Text that the keys of image observations contain."""
_TEAM = "?team="
NO_MASKS = (
    "games made for Godot RL Agents can't forbid actions, because neither that addon's protocol nor its models "
    "support masks; if the observation is not a mask, rename its key; otherwise use kind: open_protocol, which "
    "supports masks (docs/protocol.md)"
)
"""The error message for a game that sends action masks."""


@dataclass(frozen=True, slots=True)
class AgentSpaces:
    """One agent's announced spaces, keyed as in the game and in the game's order."""

    policy: str
    observations: Mapping[str, Any]
    actions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Announcement:
    """A game's announcement of its agents."""

    agents: tuple[AgentSpaces, ...]
    ordered: bool
    """True if the keys are known to be in the game's order. False for older addons, which sort the keys."""


def read_announcement(message: Mapping[str, Any]) -> Announcement:
    """Read an `env_info` message.

    Raises:
        MessageError: if a field is missing or malformed.
    """
    observed = message.get("observation_space")
    if observed is None and "obs_size" in message:  # addons up to November 2021
        observed = {"obs": {"size": [message["obs_size"]], "space": "box"}}
    count = _whole(message.get("n_agents", 1))
    if count is None or count < 1:
        raise MessageError(
            f"announces n_agents {message.get('n_agents')!r}: expected at least one agent, a node that extends the "
            "addon's AIController2D or AIController3D, in the group AGENT and with the Control Mode 'Inherit from "
            "Sync' or 'Training'"
        )
    agents = tuple(
        map(
            AgentSpaces,
            _for_each(message.get("agent_policy_names") or SHARED_POLICY, count, "agent_policy_names", str),
            _for_each(observed, count, "observation_space", dict),
            _for_each(message.get("action_space"), count, "action_space", dict),
        )
    )
    unsorted = any([*keys] != sorted(keys) for agent in agents for keys in (agent.observations, agent.actions))
    return Announcement(agents, unsorted or "agent_policy_names" in message)


def behavior_spec(behavior_id: str, agent: AgentSpaces, ordered: bool, pictures: str, owner: str) -> BehaviorSpec:
    """Return a behaviour's spec, from the spaces of one of its agents.

    Args:
        behavior_id: the behaviour id.
        agent: the agent's spaces.
        ordered: see `Announcement`.
        pictures: the layout of images, see `environment.pictures`.
        owner: the game's and the behaviour's name, used in messages.

    Raises:
        GameRefused: if a space is not supported.
    """
    observations = tuple(_observation(key, space, pictures, owner) for key, space in agent.observations.items())
    if not observations:
        raise GameRefused(f"{owner}: announces no observations; return at least one from get_obs()")
    announced: list[dict[str, Any]] = []
    continuous: list[str] = []
    branches: dict[str, int] = {}
    for key, space in agent.actions.items():
        size = _whole(space.get("size")) if isinstance(space, Mapping) else None
        kind = space.get("action_type") if isinstance(space, Mapping) else None
        if size is None or size < 1 or kind not in ("continuous", "discrete"):
            raise GameRefused(
                f"{owner}: announces the action {key!r} as {space!r}; expected a size of at least 1 and an action_type "
                "of 'continuous' or 'discrete' from get_action_space()"
            )
        announced.append({"name": key, "action_type": kind, "size": size})
        if kind == "discrete":
            branches[key] = size
        else:
            continuous += [key] if size == 1 else [f"{key}.{index}" for index in range(size)]
    if not announced:
        raise GameRefused(f"{owner}: announces no actions; return at least one from get_action_space()")
    actions = ActionSpec(
        len(continuous),
        tuple(branches.values()),
        continuous_names=tuple(continuous),
        branch_names=tuple(branches),
    )
    spaces = {"observations": dict(agent.observations), "actions": announced, "ordered": ordered}
    return BehaviorSpec(behavior_id, observations, actions, spaces={GODOT: spaces})


def is_picture(key: str) -> bool:
    """Return True if an observation with this key is an image."""
    return _PICTURE in key


def _observation(key: str, space: Any, pictures: str, owner: str) -> ObservationSpec:
    kind = space.get("space") if isinstance(space, Mapping) else None
    size = space.get("size") if isinstance(space, Mapping) else None
    if kind == "discrete" and (choices := _whole(size)) is not None and choices > 0:
        return ObservationSpec(key, (choices,))
    if kind == "box" and isinstance(size, list):
        shape = tuple(_whole(length) or 0 for length in size)
        if is_picture(key) and len(shape) == 3 and all(shape):
            return _picture(key, shape, pictures, owner)
        if not is_picture(key) and math.prod(shape) > 0:
            return ObservationSpec(key, (math.prod(shape),))
    if kind == "repeated":
        raise GameRefused(
            f"{owner}: announces the observation {key!r} as {space!r}; sets of variable size are not supported, nor "
            "does Godot RL Agents support them: send a fixed number of elements, padded with zeros"
        )
    if kind == "box" and size == [0]:
        raise GameRefused(
            f"{owner}: get_obs() returns an empty list as {key!r}; append the numbers that the agent observes"
        )
    expected = (
        "an image with the size [channels, height, width], because its key contains '2d'"
        if is_picture(key)
        else "{'space': 'box', 'size': [n]} or {'space': 'discrete', 'size': n}"
    )
    raise GameRefused(f"{owner}: announces the observation {key!r} as {space!r}; expected: {expected}")


def _picture(key: str, shape: tuple[int, ...], pictures: str, owner: str) -> ObservationSpec:
    """Return an image's spec, with the axes in the order in which its bytes are sent.

    The addon's cameras announce [channels, height, width], but send the engine's bytes, which have the channels last.
    In Godot 3, cameras also announced the channels last. A game that writes the image data itself may use the announced
    order.
    """
    if pictures == "refuse":
        raise GameRefused(
            f"{owner}: announces the image {key!r}, which the addon can't pass to a model, so no model can be exported "
            "for the game; remove --onnx_export_path (environment.pictures: refuse), and play with --inference"
        )
    first = shape[0] in CHANNELS
    if not first and shape[2] in CHANNELS:
        return ObservationSpec(key, shape, "uint8", channels_last=True)
    if pictures == "interleaved" or (pictures == "auto" and first):
        return ObservationSpec(key, (*shape[1:], shape[0]), "uint8", channels_last=True)
    return ObservationSpec(key, shape, "uint8")


def _for_each(announced: Any, count: int, what: str, kind: type) -> list[Any]:
    """Return a value for each agent, given a list of them or one value for all agents."""
    values = [announced] * count if isinstance(announced, kind) else announced
    if not isinstance(values, list) or len(values) != count:
        received = f"{len(values)} entries" if isinstance(values, list) else repr(values)
        raise MessageError(f"announces {received} as {what}: expected one {kind.__name__} for each of {count} agents")
    for place, value in enumerate(values):
        if not isinstance(value, kind):
            raise MessageError(f"announces {value!r} as the {what} of agent {place}: expected a {kind.__name__}")
    return values


def _whole(value: Any) -> int | None:
    """Return an integer, which some addons send as a float. Return None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value != round(value):
        return None
    return int(value)


def behaviors_of_agents(
    announcement: Announcement,
    owner: str,
    roles: Mapping[str, RoleSettings],
    unnamed: str | None,
    listed: Collection[str],
) -> list[tuple[str, int]]:
    """Return each agent's behaviour id and group (0 for no group).

    The behaviour has the policy's name, with its team after `?team=`, unless a pattern in `environment.behaviors`
    matches.

    Args:
        announcement: the game's announcement.
        owner: the game's name, used in messages.
        roles: `environment.behaviors`.
        unnamed: `environment.behavior`, the name to use in place of the addon's `shared_policy`.
        listed: the run's behaviours.

    Raises:
        GameRefused: if a pattern matches no policy.
    """
    policies = [agent.policy for agent in announcement.agents]
    for pattern in roles:
        if not any(fnmatchcase(policy, pattern) for policy in policies):
            names = ", ".join(dict.fromkeys(policies))
            raise GameRefused(
                f"{owner}: environment.behaviors.{pattern} matches no policy of the game; the policies are: {names}",
                key=("environment", "behaviors", pattern),
            )
    counts: dict[str, int] = {}
    behaviors = []
    for policy in policies:
        name, sign, team = policy.partition(_TEAM)
        if name == SHARED_POLICY and unnamed is not None and name not in listed:
            name = unnamed
        fitting = ((pattern, role) for pattern, role in roles.items() if fnmatchcase(policy, pattern))
        pattern, role = next(fitting, ("", RoleSettings()))
        name = role.behavior or name
        if role.team is not None:
            number = counts.get(pattern, 0) if role.team == "each" else role.team
            counts[pattern] = number + 1
            sign, team = _TEAM, str(number)
        if "?" in name or (sign and not team.isdecimal()):
            raise GameRefused(
                f"{owner}: the policy name {policy!r} contains '?', after which only 'team=' and a number can follow; "
                "rename the policy, or give it a behaviour in environment.behaviors"
            )
        behaviors.append((f"{name}{sign}{team}", 1 + int(team or 0) if role.group else 0))
    return behaviors


def assign_agents(
    announcement: Announcement, behaviors: Sequence[tuple[str, int]], pictures: str, owner: str
) -> dict[str, tuple[BehaviorSpec, NDArray[np.int64], int]]:
    """Return each behaviour id's spec, agent indices [n] and group.

    Args:
        announcement: the game's announcement.
        behaviors: each agent's behaviour id and group.
        pictures: see `environment.pictures`.
        owner: the game's name, used in messages.

    Raises:
        GameRefused: if agents of one behaviour have different spaces, or a space is not supported.
    """
    places: dict[str, list[int]] = {}
    for place, (behavior_id, _) in enumerate(behaviors):
        places.setdefault(behavior_id, []).append(place)
    by_name: dict[str, tuple[int, AgentSpaces]] = {}
    assigned = {}
    for behavior_id, agents in places.items():
        first_place, first = by_name.setdefault(behavior_name(behavior_id), (agents[0], announcement.agents[agents[0]]))
        for place in agents:
            agent = announcement.agents[place]
            if differs := _difference(first, agent):
                who = f"{owner}, behaviour {behavior_id!r}, agent {place}"
                behavior_spec(behavior_id, agent, announcement.ordered, pictures, who)  # raises an error if invalid
                raise GameRefused(
                    f"{owner}: agents {first_place} and {place} share one behaviour, {behavior_name(behavior_id)!r}, "
                    f"but announce {differs}; give them separate policy names (the property policy_name of their "
                    "AIController)"
                )
        what = f"{owner}, behaviour {behavior_id!r}"
        if MASK in first.observations:
            raise GameRefused(f"{what}: announces the observation {MASK!r}: {NO_MASKS}")
        spec = behavior_spec(behavior_id, first, announcement.ordered, pictures, what)
        groups = {group for id_, group in behaviors if id_ == behavior_id}
        assigned[behavior_id] = (
            replace(spec, grouped=groups != {0}),
            np.array(agents, np.int64),
            max(groups),
        )
    return assigned


def _difference(one: AgentSpaces, other: AgentSpaces) -> str:
    """Describe the first key that two agents announce differently; an empty string if there is none."""
    for what, first, second in (
        ("observation", one.observations, other.observations),
        ("action", one.actions, other.actions),
    ):
        for key in {**first, **second}:
            if first.get(key) != second.get(key):
                announced = [repr(spaces[key]) if key in spaces else "nothing" for spaces in (first, second)]
                return f"the {what} {key!r} as {announced[0]} and {announced[1]}"
    return ""


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
        of_agents = self._own(observed)
        return tuple(self._observation(observation, of_agents) for observation in self.spec.observations)

    def rewards(self, values: Sequence[Any]) -> NDArray[np.float32]:
        """Read the agents' rewards [n].

        Raises:
            WrongColumn: if a reward is not a finite number.
        """
        of_agents = self._own(values)
        try:
            rewards = _float32(of_agents, len(of_agents))
        except (OverflowError, TypeError, ValueError):
            rewards = np.full(len(of_agents), np.nan, np.float32)
        if not np.isfinite(rewards).all():
            for agent, value in zip(self._places, of_agents, strict=True):
                if not isinstance(value, _NUMBER_KINDS) or not np.isfinite(_float32([_float(value)], 1)[0]):
                    raise WrongColumn(
                        f"agent {agent} has reward {not_a_number(value)}; expected a finite float32 number; look for a "
                        "division by zero or an error where the game computes rewards"
                    )
        return rewards

    def done(self, values: Sequence[Any]) -> NDArray[np.bool_]:
        """Return flags [n], true for agents whose episodes have ended.

        Raises:
            WrongColumn: if a value is not a boolean.
        """
        flags = self._own(values)
        if {*map(type, flags)} != {bool}:
            flags = [truth(*flag) for flag in zip(self._places, repeat("done"), flags)]
        return np.fromiter(flags, np.bool_, len(flags))

    def infos(self, values: Sequence[Any] | None, places: NDArray[np.intp]) -> list[Mapping[str, Any]]:
        """Return the infos of the agents at `places`; empty infos if the addon sends none.

        Raises:
            WrongColumn: if an info is not a map, or a known field has a wrong value.
        """
        if values is None:
            return [{} for _ in places]
        of_agents: list[Mapping[str, Any]] = []
        for agent in (self._places[place] for place in places):
            info = info_of(agent, values[agent])
            truth(agent, TRUNCATED, info.get(TRUNCATED, False))
            last = info.get(LAST)
            if last is not None and not isinstance(last, Mapping):
                raise WrongColumn(f"agent {agent} has {shown(last)} as {LAST!r} in its info; expected a map of keys")
            of_agents.append(info)
        return of_agents

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

    def _observation(self, observation: ObservationSpec, maps: Sequence[Any]) -> Array:
        key = observation.name
        try:
            column = [values[key] for values in maps]
        except (KeyError, TypeError):
            agent, values = next(
                (agent, values)
                for agent, values in zip(self._places, maps, strict=True)
                if not isinstance(values, Mapping) or key not in values
            )
            keys = ", ".join(values) if isinstance(values, Mapping) else shown(values)
            why = f"it has: {keys}" if keys else f"it has no observations: {OF_OBSERVATIONS}"
            raise WrongColumn(f"agent {agent} lacks the observation {key!r} ({why})") from None
        if key in self._choices:
            return self._one_hot(observation, column)
        if is_picture(key):
            return self._pictures(observation, column)
        return self._numbers(observation, column)

    def _numbers(self, observation: ObservationSpec, column: list[Any]) -> Array:
        size = observation.size
        try:
            if {*map(len, column)} != {size}:
                raise ValueError
            numbers = _float32(chain.from_iterable(column), size * len(column))
        except (OverflowError, TypeError, ValueError):
            numbers = np.concatenate(
                [self._one_by_one(*entry, observation) for entry in zip(self._places, column, strict=True)]
            )
        if not np.isfinite(numbers).all():
            row, index = divmod(int((~np.isfinite(numbers)).argmax()), size)
            raise WrongColumn(self._not_a_number(self._places[row], observation, index, [*_flat(column[row])][index]))
        return numbers.reshape(len(column), size)

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
                f"numbers that it has announced{_cure_of_text(value)}"
            )
        for index, number in enumerate(flat):
            if not isinstance(number, _NUMBER_KINDS):
                raise WrongColumn(self._not_a_number(agent, observation, index, number))
        return _float32(map(_float, flat), len(flat))

    def _not_a_number(self, agent: int, observation: ObservationSpec, index: int, value: Any) -> str:
        return (
            f"agent {agent} has {not_a_number(value)} at index {index} of the observation {observation.name!r}; "
            f"expected finite float32 numbers{_cure_of_text(value) or f'; {OF_OBSERVATIONS}'}"
        )

    def _one_hot(self, observation: ObservationSpec, column: list[Any]) -> Array:
        choices = observation.size
        rows = np.zeros((len(column), choices), np.float32)
        for row, (agent, value) in enumerate(zip(self._places, column, strict=True)):
            inner = value[0] if isinstance(value, list) and len(value) == 1 else value
            if not isinstance(inner, _NUMBER_KINDS) or inner != round(inner) or not 0 <= inner < choices:
                raise WrongColumn(
                    f"agent {agent} has {shown(value)} as the observation {observation.name!r}; expected a whole "
                    f"number from 0 to {choices - 1}"
                )
            rows[row, int(inner)] = 1
        return rows

    def _pictures(self, observation: ObservationSpec, column: list[Any]) -> Array:
        pictures = np.empty((len(column), *observation.shape), np.uint8)
        for row, (agent, text) in enumerate(zip(self._places, column, strict=True)):
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
    if isinstance(value, str) and not _cure_of_text(value):
        return value
    return "null (NaN or null in Godot)" if value is None else shown(value)


def _cure_of_text(value: Any) -> str:
    """Return the remedy for a text where a number is expected; an empty string for other values, such as `nan`."""
    if not isinstance(value, str) or _NOT_FINITE.sub(b"", f",{value},".encode()) == b",,":
        return ""
    return "; Godot sends vectors as text: append their components (.x, .y), and only numbers"


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


def call_of(method: str) -> bytes:
    """Return the message that calls a method on all agents."""
    return json.dumps({"type": "call", "method": method}).encode()  # in ASCII: Godot reads one byte per character


def read_message(content: bytes) -> dict[str, Any]:
    """Read a message from the game.

    Raises:
        MessageError: if the bytes are not a message.
    """
    try:
        message = read_json(content)
    except MessageError as error:
        raise MessageError(f"sent {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError(f"sent JSON that is not a message (a map with a 'type'): {_excerpt(content)}")
    return message


def read_json(content: bytes) -> Any:
    """Parse JSON in Godot's form; non-finite numbers become strings.

    Raises:
        MessageError: if the bytes are not JSON.
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
        raise MessageError(f"invalid JSON: {error.msg} at byte {at}, near {_excerpt(content, at)}") from None


def _excerpt(content: bytes, at: int = 0) -> str:
    begin = max(0, at - _SHOWN // 2)
    dots = "…" if begin + _SHOWN < len(content) else ""
    return repr(content[begin : begin + _SHOWN].decode("latin-1")) + dots
