"""The behaviours of a game's agents, by the names of their policies: behaviour, team and group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from headrace.config import RoleSettings
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.environments.godot.spaces import SHARED_POLICY, AgentSpaces, Announcement, behavior_spec
from headrace.stages.environments.programs.errors import ProgramRefused

_TEAM = "?team="


def behaviors_of_agents(
    announcement: Announcement,
    owner: str,
    roles: Mapping[str, RoleSettings],
    unnamed: str | None,
    listed: Collection[str],
) -> list[tuple[str, int]]:
    """Return each agent's behaviour id, and its group (0 for none).

    A policy's name is the behaviour's, with its team behind `?team=`, unless one of the patterns of
    `environment.behaviors` fits it.

    Args:
        announcement: what the game has announced.
        owner: its name, for messages.
        roles: `environment.behaviors`.
        unnamed: `environment.behavior`, in place of the addon's `shared_policy`.
        listed: the behaviours of the run.

    Raises:
        ProgramRefused: if a pattern fits no policy.
    """
    policies = [agent.policy for agent in announcement.agents]
    for pattern in roles:
        if not any(fnmatchcase(policy, pattern) for policy in policies):
            there = ", ".join(dict.fromkeys(policies))
            raise ProgramRefused(
                f"{owner}: environment.behaviors.{pattern} fits no policy of the game; there are: {there}",
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
    """Return the spec, the agents [n] and the group of each behaviour id.

    Args:
        announcement: what the game has announced.
        behaviors: behaviour id and group of each agent.
        pictures: as `environment.pictures`.
        owner: the game's name, for messages.

    Raises:
        ProgramRefused: if agents of one behaviour have different spaces, or a space is not supported.
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
            if agent.observations != first.observations or agent.actions != first.actions:
                raise ProgramRefused(
                    f"{owner}: agents {first_place} and {place} are of one behaviour, {behavior_name(behavior_id)!r}, "
                    f"but announce different spaces ({_shown(first)} and {_shown(agent)}); give them policy names of "
                    "their own (the property policy_name of their AIController)"
                )
        what = f"{owner}, behaviour {behavior_id!r}"
        spec = behavior_spec(behavior_id, first, announcement.ordered, pictures, what)
        groups = {group for id_, group in behaviors if id_ == behavior_id}
        found[behavior_id] = (
            replace(spec, grouped=groups != {0}),
            np.array(agents, np.int64),
            max(groups),
        )
    return found


def _shown(agent: AgentSpaces) -> str:
    return f"{dict(agent.observations)}, {dict(agent.actions)}"
