"""Reads a game's announcement of its agents, and derives the behaviours: specs, teams and groups.

Five generations of the addon announce spaces in different forms, which the fields present identify. The spaces are
announced for all agents together or for each agent, with or without policy names. The oldest addons announce only the
size of the single observation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import RoleSettings
from headrace.queues.specs import GODOT, ActionSpec, BehaviorSpec, ObservationSpec, behavior_name
from headrace.stages.environments.engines.errors import GameRefused
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


class BadAnnouncement(Exception):
    """An announcement can't be read. The error text is the end of a sentence that begins with the game's name."""


def read_announcement(message: Mapping[str, Any]) -> Announcement:
    """Read an `env_info` message.

    Raises:
        BadAnnouncement: if a field is missing or malformed.
    """
    count = _whole(message.get("n_agents", 1))
    if count is None or count < 1:
        raise BadAnnouncement(
            f"announces n_agents {message.get('n_agents')!r}: expected at least one agent, a node that extends the "
            "addon's AIController2D or AIController3D, in the group AGENT and with the Control Mode 'Inherit from "
            "Sync' or 'Training'"
        )
    observed = message.get("observation_space")
    if observed is None and "obs_size" in message:  # addons up to November 2021
        observed = {"obs": {"size": [message["obs_size"]], "space": "box"}}
    observations = _for_each(observed, count, "observation_space")
    actions = _for_each(message.get("action_space"), count, "action_space")
    names = message.get("agent_policy_names")
    if names is None:
        names = [SHARED_POLICY] * count
    if not isinstance(names, list) or len(names) != count:
        raise BadAnnouncement(f"announces the agent_policy_names {names!r}: expected a name for each of {count} agents")
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise BadAnnouncement(f"announces {name!r} as the policy name of agent {place}: expected text")
    agents = tuple(map(AgentSpaces, names, observations, actions))
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
            return _picture(key, shape, pictures)
        if not is_picture(key) and math.prod(shape) > 0:
            return ObservationSpec(key, (math.prod(shape),))
    if kind == "repeated":
        raise GameRefused(
            f"{owner}: announces the observation {key!r} as {space!r}; sets of variable size are not supported, nor "
            "does Godot RL Agents support them: send a fixed number of elements, padded with zeros"
        )
    expected = (
        "an image with the size [channels, height, width], because its key contains '2d'"
        if is_picture(key)
        else "{'space': 'box', 'size': [n]} or {'space': 'discrete', 'size': n}"
    )
    raise GameRefused(f"{owner}: announces the observation {key!r} as {space!r}; expected: {expected}")


def _picture(key: str, shape: tuple[int, ...], pictures: str) -> ObservationSpec:
    """Return an image's spec, with the axes in the order in which its bytes are sent.

    The addon's cameras announce [channels, height, width], but send the engine's bytes, which have the channels last.
    In Godot 3, cameras also announced the channels last. A game that writes the image data itself may use the announced
    order.
    """
    first = shape[0] in CHANNELS
    if not first and shape[2] in CHANNELS:
        return ObservationSpec(key, shape, "uint8", channels_last=True)
    if pictures == "interleaved" or (pictures == "auto" and first):
        return ObservationSpec(key, (*shape[1:], shape[0]), "uint8", channels_last=True)
    return ObservationSpec(key, shape, "uint8")


def _for_each(spaces: Any, count: int, what: str) -> list[Mapping[str, Any]]:
    if isinstance(spaces, Mapping):
        return [spaces] * count
    if not isinstance(spaces, list):
        raise BadAnnouncement(
            f"announces {spaces!r} as {what}: expected a map of keys, or a list with a map for each agent"
        )
    if len(spaces) != count:
        raise BadAnnouncement(
            f"announces {len(spaces)} entries in {what} for {count} agents: expected a map for each agent"
        )
    for place, space in enumerate(spaces):
        if not isinstance(space, Mapping):
            raise BadAnnouncement(f"announces {space!r} as the {what} of agent {place}: expected a map of keys")
    return spaces


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
            there = ", ".join(dict.fromkeys(policies))
            raise GameRefused(
                f"{owner}: environment.behaviors.{pattern} matches no policy of the game; the policies are: {there}",
                key=("environment", "behaviors", pattern),
            )
    counts: dict[str, int] = {}
    found = []
    for policy in policies:
        name, sign, team = policy.partition(_TEAM)
        if name == SHARED_POLICY and unnamed is not None and name not in listed:
            name = unnamed
        group = 0
        fitting = [pattern for pattern in roles if fnmatchcase(policy, pattern)]
        for pattern in fitting[:1]:
            role = roles[pattern]
            name = role.behavior or name
            if role.team is not None:
                number = counts.get(pattern, 0) if role.team == "each" else role.team
                counts[pattern] = number + 1
                sign, team = _TEAM, str(number)
            group = 1 + int(team or 0) if role.group else 0
        found.append((f"{name}{sign}{team}", group))
    return found


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
    found = {}
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
        found[behavior_id] = (
            replace(spec, grouped=groups != {0}),
            np.array(agents, np.int64),
            max(groups),
        )
    return found


def _difference(one: AgentSpaces, other: AgentSpaces) -> str:
    """Describe the first key that two agents announce differently; an empty string if there is none."""
    for what, first, second in (
        ("observation", one.observations, other.observations),
        ("action", one.actions, other.actions),
    ):
        for key in {**first, **second}:
            if first.get(key) != second.get(key):
                each = [repr(spaces[key]) if key in spaces else "nothing" for spaces in (first, second)]
                return f"the {what} {key!r} as {each[0]} and {each[1]}"
    return ""
