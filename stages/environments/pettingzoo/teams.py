"""Teams of agents: each agent's behaviour name and team, the groups' rewards, and the results of games.

Patterns of `environment.behaviors` match agents by name (`str` of the agent's id), because PettingZoo provides nothing
else. Without patterns, all agents must have equal spaces and share one behaviour. In that case, two agents are
opponents unless they form a group, and more than two are a team.

Axis letters: g games, T teams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.config import RoleSettings
from headrace.config.errors import suggest
from headrace.stages.environments.pettingzoo.instances import Agent
from headrace.stages.errors import StageError

Spaces = tuple[Any, Any]
"""An agent's observation space and action space."""

_KEY = "environment.behaviors"
_PATH = ("environment", "behaviors")
_NAMES_SHOWN = 12
OutcomeRule = Literal["return", "last_reward"]
_TIE = 1e-6
"""Relative difference below which scores count as equal, because sums of floats depend on the order of addition."""


@dataclass(frozen=True, slots=True)
class AgentRole:
    """An agent's behaviour, side and group."""

    behavior: str
    """The behaviour's name."""
    team: int
    """The agent's side; the team on that side may change from episode to episode."""
    grouped: bool = False
    """True if the agent shares rewards with the other grouped agents of its team."""


class RoleAssignment:
    """Assigns roles to agents, and stores them.

    Args:
        roles: `environment.behaviors`; if empty, all agents have the behaviour `behavior`.
        behavior: behaviour name for roles that name no behaviour. It may be empty if all roles name a behaviour.
        spaces_of: returns an agent's spaces.
        owner: the environment's name, used in messages.
        apart: the teams of agents without a team and outside a group. True makes each of these agents a separate team,
            False puts them in one team, and None makes separate teams only if there are exactly two agents, which share
            a behaviour.
    """

    def __init__(
        self,
        roles: Mapping[str, RoleSettings],
        behavior: str,
        spaces_of: Callable[[Agent], Spaces],
        owner: str,
        apart: bool | None = None,
    ) -> None:
        self.roles: dict[Agent, AgentRole] = {}
        """Each agent's role, in the order of assignment."""
        self._settings = dict(roles) or {"*": RoleSettings()}
        self._behavior = behavior
        self._spaces_of = spaces_of
        self._owner = owner
        self._apart = apart
        self._spaces: dict[str, tuple[Agent, Spaces]] = {}

    @property
    def teams(self) -> int:
        """The number of sides."""
        return 1 + max(role.team for role in self.roles.values())

    @property
    def symmetric(self) -> bool:
        """True if there are several sides, all with the same behaviours."""
        sides: dict[int, set[str]] = {}
        for role in self.roles.values():
            sides.setdefault(role.team, set()).add(role.behavior)
        return len(sides) > 1 and all(side == sides[0] for side in sides.values())

    def spaces_of(self, behavior: str) -> Spaces:
        """Return the spaces of a behaviour's agents."""
        return self._spaces[behavior][1]

    def assign(self, agents: Sequence[Agent], *, everybody: bool) -> None:
        """Assign roles to the agents that the environment starts with.

        Args:
            agents: the agents' ids, in the environment's order.
            everybody: True if no other agents can join, in which case each pattern must match an agent.

        Raises:
            StageError: if an agent has no role, a pattern matches no agent, team numbers have gaps, or agents of one
                behaviour differ in their spaces.
        """
        for agent in agents:
            if not isinstance(agent, Hashable) or list(agents).count(agent) > 1:
                raise StageError(f"{self._owner}: agent '{agent}': expected unique, hashable agent ids")
        patterns = {agent: self._pattern(agent) for agent in agents}
        if everybody:
            self._check_patterns(agents, set(patterns.values()))
        names = {agent: self._behavior_of(pattern) for agent, pattern in patterns.items()}
        self._check_spaces(names)
        together = any(self._settings[pattern].group for pattern in patterns.values())
        duel = len(agents) == 2 and len(set(names.values())) == 1
        opponents = (duel if self._apart is None else self._apart) and not together
        counts = dict.fromkeys(self._settings, 0)
        for agent, pattern in patterns.items():
            team = self._settings[pattern].team
            if team == "each":
                team = counts[pattern]
            elif team is None:
                team = len(self.roles) if opponents else 0
            counts[pattern] += 1
            self.roles[agent] = AgentRole(names[agent], team, self._settings[pattern].group)
        self._check_teams()

    def join(self, agent: Agent) -> AgentRole:
        """Assign a role to an agent that was absent at the start.

        Raises:
            StageError: in the same cases as `assign`, and if the agent would form a new team.
        """
        pattern = self._pattern(agent)
        behavior, team = self._behavior_of(pattern), self._settings[pattern].team
        if team == "each" or (isinstance(team, int) and team >= self.teams):
            raise StageError(
                f"{self._owner}: agent '{agent}' joined in team {team}, which did not exist at the start; all teams "
                "must have agents among possible_agents",
                key=(*_PATH, pattern, "team"),
            )
        self._check_spaces({agent: behavior})
        self.roles[agent] = AgentRole(behavior, team or 0, self._settings[pattern].group)
        return self.roles[agent]

    def _pattern(self, agent: Agent) -> str:
        for pattern in self._settings:
            if _fits(agent, pattern):
                return pattern
        patterns = ", ".join(f"'{pattern}'" for pattern in self._settings)
        raise StageError(
            f"{self._owner}: {_KEY}: none of {patterns} matches agent '{agent}'; expected a behaviour for every agent. "
            f"Add a line such as '{_pattern_for(agent)}', or '*' at the end for all others",
            key=_PATH,
        )

    def _behavior_of(self, pattern: str) -> str:
        name = self._settings[pattern].behavior or self._behavior
        if not name:
            raise StageError(
                f"{self._owner}: {_KEY}.{pattern}: names no behaviour, and environment.behavior is not set",
                key=(*_PATH, pattern),
            )
        return name

    def _check_patterns(self, agents: Sequence[Agent], used: set[str]) -> None:
        for pattern in self._settings:
            if pattern in used:
                continue
            if any(_fits(agent, pattern) for agent in agents):
                raise StageError(
                    f"{self._owner}: {_KEY}.{pattern}: earlier patterns match all its agents; the first match counts, "
                    "so put specific patterns first",
                    key=(*_PATH, pattern),
                )
            hint = suggest(pattern, map(_pattern_for, agents)) or f"; available: {_listed(agents)}"
            raise StageError(
                f"{self._owner}: {_KEY}.{pattern}: matches none of its agents{hint}", key=(*_PATH, pattern)
            )

    def _check_spaces(self, names: Mapping[Agent, str]) -> None:
        """Check that agents of one behaviour, which share a network, have equal spaces."""
        for agent, behavior in names.items():
            spaces = self._spaces_of(agent)
            first, expected = self._spaces.setdefault(behavior, (agent, spaces))
            if spaces == expected:
                continue
            patterns = list(dict.fromkeys(_pattern_for(name) for name in names))
            example = ", ".join(f"'{pattern}': Name{number}" for number, pattern in enumerate(patterns, 1))
            advice = f"give them separate behaviours, such as {_KEY}: {{{example}}}"
            raise StageError(
                f"{self._owner}: agents '{first}' and '{agent}' would both be '{behavior}', but differ in their "
                f"{_difference(expected, spaces)}; {advice}",
                key=_PATH,
            )

    def _check_teams(self) -> None:
        teams = {role.team for role in self.roles.values()}
        missing = sorted(set(range(max(teams) + 1)) - teams)
        if missing:
            raise StageError(
                f"{self._owner}: {_KEY}: team {missing[0]} has no agents, but team {max(teams)} has; number "
                "the teams 0, 1, … without gaps",
                key=_PATH,
            )


def _fits(agent: Agent, pattern: str) -> bool:
    """Return True if an agent's name equals or matches a pattern."""
    name = str(agent)
    return name == pattern or fnmatchcase(name, pattern)


def _pattern_for(agent: Agent) -> str:
    """Return a pattern such as `adversary_*` for `adversary_3`.

    A name without letters, such as `3`, stays unchanged.
    """
    name = str(agent)
    return re.sub(r"(?<=\D)\d+$", "*", name)


def _listed(agents: Sequence[Agent]) -> str:
    return ", ".join(map(str, agents[:_NAMES_SHOWN])) + (", …" if len(agents) > _NAMES_SHOWN else "")


def _difference(one: Spaces, other: Spaces) -> str:
    which = 0 if one[0] != other[0] else 1
    return f"{('observations', 'actions')[which]} ({one[which]} and {other[which]})"


class TeamScores:
    """Adds up each team's rewards in the running game of one instance.

    Args:
        teams: the number of teams, T.
    """

    __slots__ = ("_last", "_total")

    def __init__(self, teams: int) -> None:
        self._total = [0.0] * teams
        self._last = [0.0] * teams

    def add(self, team: int, reward: float, *, at_the_end: bool) -> None:
        """Add an agent's reward; `at_the_end` is True if the reward came with the end of the agent's episode."""
        self._total[team] += reward
        if at_the_end:
            self._last[team] += reward

    def by(self, rule: OutcomeRule) -> list[float]:
        """Return the teams' scores [T] under a rule; the scores decide the game."""
        return self._total if rule == "return" else self._last


def game_outcomes(scores: Sequence[Sequence[float]], teams: int) -> NDArray[np.float32]:
    """Return outcomes [g, T] for scores [g, T]: 1 for the best team, 0 for others; tied best teams get 0.5 each."""
    values = np.asarray(scores, np.float64).reshape(len(scores), teams)
    best = values.max(axis=1, keepdims=True)
    top = values >= best - _TIE * np.maximum(1.0, np.abs(best))
    shared = np.count_nonzero(top, axis=1)[:, None] > 1
    return np.where(top, np.where(shared, 0.5, 1.0), 0.0).astype(np.float32)


class GroupRewards:
    """Adds up each group's rewards in one instance's running episode, for turn-based environments.

    If all agents act simultaneously, the other members' rewards are in their rows of the same tick. In a turn-based
    game, no two agents have a row in the same tick, so each row carries the rewards that the other members received
    between two of its agent's turns.

    An agent's reward is final when its turn comes. Many environments also report preliminary rewards of waiting agents.
    These rewards count for the other members immediately, even for a member that dies before the waiting agent's turn.
    The final reward replaces the preliminary rewards, so no reward counts twice.
    """

    __slots__ = ("_counted", "_final", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._final: dict[Agent, float] = {}
        self._counted: dict[Agent, float] = {}

    def add(self, group_id: int, agent: Agent, reward: float, *, final: bool) -> None:
        """Add an agent's reward since its last turn.

        Args:
            group_id: the agent's group.
            agent: the agent's id.
            reward: the sum since its last turn.
            final: True in the agent's turn and at the end of its episode, False for a preliminary reward.
        """
        total = self._final.get(agent, 0.0) + reward
        if final:
            self._final[agent] = total
        self._groups[group_id] = self._groups.get(group_id, 0.0) + total - self._counted.get(agent, 0.0)
        self._counted[agent] = total

    def of_mates(self, group_id: int, agent: Agent) -> float:
        """Return the other group members' rewards so far, including members that are gone or have yet to act."""
        return self._groups.get(group_id, 0.0) - self._counted.get(agent, 0.0)
