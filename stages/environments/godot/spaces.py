"""What a game announces of its agents: their policies' names, and the spaces of their observations and actions.

Addons of five generations announce it in different forms, which are told apart by what is there: spaces once for all
agents or one for each, with names of policies or without, and the very oldest the size of the only observation alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.queues.specs import GODOT, ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.godot.pictures import CHANNELS
from headrace.stages.environments.programs.errors import ProgramRefused

SHARED_POLICY = "shared_policy"
"""The policy of agents that name none."""
_PICTURE = "2d"
"""Part of the keys of pictures."""


@dataclass(frozen=True, slots=True)
class AgentSpaces:
    """One agent's spaces, by key in the game's order, as they were announced."""

    policy: str
    observations: Mapping[str, Any]
    actions: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the game has announced."""

    agents: tuple[AgentSpaces, ...]
    ordered: bool
    """True if the order of keys is certainly that of the game; older addons sort them."""


class BadAnnouncement(Exception):
    """An announcement that can't be read; the text follows the game's name in a sentence."""


def read_announcement(message: Mapping[str, Any]) -> Announcement:
    """Read an `env_info`.

    Raises:
        BadAnnouncement: if something is missing or of another form.
    """
    count = _whole(message.get("n_agents", 1))
    if count is None or count < 1:
        raise BadAnnouncement(
            f"announces n_agents {message.get('n_agents')!r}: expected at least one agent, a node that extends the "
            "addon's AIController2D or AIController3D, in the group AGENT and with Control Mode 'Inherit from Sync' or "
            "'Training'"
        )
    observed = message.get("observation_space")
    if observed is None and "obs_size" in message:  # of addons up to November 2021
        observed = {"obs": {"size": [message["obs_size"]], "space": "box"}}
    observations = _for_each(observed, count, "observation_space")
    actions = _for_each(message.get("action_space"), count, "action_space")
    names = message.get("agent_policy_names")
    if names is None:
        names = [SHARED_POLICY] * count
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise BadAnnouncement(f"announces the agent_policy_names {names!r}: expected a name for each of {count} agents")
    agents = tuple(map(AgentSpaces, names, observations, actions))
    unsorted = any([*keys] != sorted(keys) for agent in agents for keys in (agent.observations, agent.actions))
    return Announcement(agents, unsorted or "agent_policy_names" in message)


def behavior_spec(behavior_id: str, agent: AgentSpaces, ordered: bool, pictures: str, owner: str) -> BehaviorSpec:
    """The spec of a behaviour, from the spaces of one of its agents.

    Args:
        behavior_id: of the behaviour.
        agent: the spaces.
        ordered: as of the `Announcement`.
        pictures: how pictures come, as `environment.pictures`.
        owner: the game's name and the behaviour's, for messages.

    Raises:
        ProgramRefused: if a space is not supported.
    """
    observations = tuple(_observation(key, space, pictures, owner) for key, space in agent.observations.items())
    if not observations:
        raise ProgramRefused(f"{owner}: announces no observations; return at least one from get_obs()")
    announced: list[dict[str, Any]] = []
    continuous: list[str] = []
    branches: dict[str, int] = {}
    for key, space in agent.actions.items():
        size = _whole(space.get("size")) if isinstance(space, Mapping) else None
        kind = space.get("action_type") if isinstance(space, Mapping) else None
        if size is None or size < 1 or kind not in ("continuous", "discrete"):
            raise ProgramRefused(
                f"{owner}: announces the action {key!r} as {space!r}; expected a size of at least 1 and the "
                "action_type 'continuous' or 'discrete' from get_action_space()"
            )
        announced.append({"name": key, "action_type": kind, "size": size})
        if kind == "discrete":
            branches[key] = size
        else:
            continuous += [key] if size == 1 else [f"{key}.{index}" for index in range(size)]
    if not announced:
        raise ProgramRefused(f"{owner}: announces no actions; return at least one from get_action_space()")
    actions = ActionSpec(
        len(continuous),
        tuple(branches.values()),
        continuous_names=tuple(continuous),
        branch_names=tuple(branches),
    )
    spaces = {"observations": dict(agent.observations), "actions": announced, "ordered": ordered}
    return BehaviorSpec(behavior_id, observations, actions, spaces={GODOT: spaces})


def is_picture(key: str) -> bool:
    """Return True if an observation of this key is a picture."""
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
        raise ProgramRefused(
            f"{owner}: announces the observation {key!r} as {space!r}; sets of no fixed size are not supported, by "
            "Godot RL Agents neither: give a fixed number of things, with zeros where there are fewer"
        )
    expected = (
        "a picture has the size [channels, height, width], as its key contains '2d'"
        if is_picture(key)
        else "{'space': 'box', 'size': [n]} or {'space': 'discrete', 'size': n}"
    )
    raise ProgramRefused(f"{owner}: announces the observation {key!r} as {space!r}; expected: {expected}")


def _picture(key: str, shape: tuple[int, ...], pictures: str) -> ObservationSpec:
    """A picture, in the order in which its bytes come.

    The addon's cameras announce [channels, height, width], and send the engine's bytes, channels last; Godot 3's
    announced them last, too. A game may fill the string itself, in the order that it announces.
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
    if isinstance(spaces, list) and len(spaces) == count and all(isinstance(space, Mapping) for space in spaces):
        return spaces
    if isinstance(spaces, list):
        raise BadAnnouncement(f"announces {len(spaces)} of {what} for {count} agents: expected a map for each")
    raise BadAnnouncement(f"announces {spaces!r} as {what}: expected a map of keys, or a list of such, one an agent")


def _whole(value: Any) -> int | None:
    """A whole number, which some addons send as a float; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value != round(value):
        return None
    return int(value)
