"""PettingZoo environments as an environment group: many agents, of several behaviours and teams.

Instances are stepped one after the other; what their agents saw is gathered in `rows` and leaves as columns. In an
environment that goes by turns, a tick is one move of each instance, and there are decision rows only for those who
move next: their rewards are everything that they received since their last move, also while others moved.

An episode of an instance is a game between its teams, if it has several (`games`). The sides that the roles tell are
fixed, but which team plays which side may rotate: with T teams, side s of instance i is played in its episode e by
team (s + i + e) mod T. An agent id is an agent's name *and* team in an instance, so it never changes its behaviour id.

Which environments are made is in `making`, how one is stepped in `instances`, who is what in `roles`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config import ObservationSettings, RoleSettings
from queues.messages import ActionBatch
from queues.specs import BehaviorSpec
from stages.environment.parameters import EpisodeParameters
from stages.environment.pettingzoo.games import OutcomeRule, Score, check_scores, outcomes
from stages.environment.pettingzoo.instances import Instance, Sight
from stages.environment.pettingzoo.kinds import Kind, check_names
from stages.environment.pettingzoo.roles import Casting, Role
from stages.environment.pettingzoo.rows import Playing, RowsOfBehavior
from stages.environment.pettingzoo.sharing import Earnings
from stages.environment.protocol import AgentSteps, GameResults, StepResult
from stages.error_text import describe_error
from stages.errors import BrokenEnvironmentError, StageError

log = logging.getLogger(__name__)

_SEEDS = 2**31


@dataclass(slots=True)
class _Match:
    """The running episode of an instance."""

    score: Score
    turn: int
    """How far the sides are rotated."""
    live: dict[str, Playing] = field(default_factory=dict)
    earnings: Earnings = field(default_factory=Earnings)


@dataclass(slots=True)
class _Tick:
    rows: dict[str, RowsOfBehavior] = field(default_factory=dict)
    over: list[int] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)


class PettingZooGroup:
    """Instances of a PettingZoo environment, parallel or by turns.

    The specs are known after the first reset, because only then the infos tell whether there are action masks.

    Args:
        instances: all of the same environment; the group closes them.
        behavior: behaviour name of agents whose role names none.
        name: what messages call the environment.
        roles: `environment.behaviors`: behaviour names and teams of agents, by patterns.
        observations: what observations are to be taken for, by name, where their spaces do not tell.
        outcome: who wins a game, see `environment.outcome`.
        rotate_sides: whether teams change sides with each episode; None: where all sides have the same behaviours.

    Raises:
        StageError: if the roles do not fit the agents, or a space is not supported.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        behavior: str,
        name: str,
        roles: Mapping[str, RoleSettings] | None = None,
        observations: Mapping[str, ObservationSettings] | None = None,
        outcome: OutcomeRule = "return",
        rotate_sides: bool | None = None,
    ) -> None:
        self.num_envs = len(instances)
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._instances = instances
        self._name = name
        self._observations = observations or {}
        self._outcome: OutcomeRule = outcome
        self._wants_rotation = rotate_sides
        self._rotates = False
        self._teams = 1
        self._shares = False
        self._casting = Casting(roles or {}, behavior, self._spaces_of, name)
        self._kinds: dict[str, Kind] = {}
        self._numbers: dict[str, int] = {}
        self._episodes: dict[int, int] = {}
        self._matches: list[_Match] = []
        self._played = [0] * self.num_envs
        self._actors: dict[str, list[tuple[int, str]]] = {}
        self._random = np.random.default_rng()
        self._parameters: EpisodeParameters | None = None
        self._closed = False
        try:
            agents = getattr(instances[0].env, "possible_agents", None)
            if agents:
                self._cast(list(agents), everybody=True)
        except StageError:
            self.close()
            raise

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Tell environments the parameters of each episode, as options of `reset`."""
        self._parameters = parameters

    def reset(self, seed: int | None = None) -> StepResult:
        """Start all instances anew.

        Args:
            seed: instance i's first episode is seeded with seed + i, its others with numbers that follow from the
                seed; None: numbers that follow from those before.

        Raises:
            BrokenEnvironmentError: if an environment raises, or gives what its spaces do not promise.
        """
        if seed is None:
            seeds = [self._new_seed() for _ in self._instances]
        else:
            # With a seed all that follows is determined by it, the numbers of episodes and the sides too.
            self._random = np.random.default_rng(seed)
            self._episodes.clear()
            self._played = [0] * self.num_envs
            seeds = [(int(seed) + env_id) % _SEEDS for env_id in range(self.num_envs)]
        first = [self._begin_episode(env_id, seed) for env_id, seed in enumerate(seeds)]
        if not self.behavior_specs:
            self._announce()
        tick = _Tick()
        self._matches = [self._new_match(env_id) for env_id in range(self.num_envs)]
        for env_id, sights in enumerate(first):
            self._take_beginning(env_id, sights, tick)
        return self._result(tick)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances: all agents of parallel ones, one agent's turn of the others.

        Raises:
            BrokenEnvironmentError: if an environment raises, or breaks the rules of its API.
            NotFiniteError: if what an agent receives is NaN or infinite.
            StageError: if the actions are not those of the agents that were asked.
        """
        orders: list[dict[str, Any]] = [{} for _ in self._instances]
        for behavior_id, actors in self._actors.items():
            kind = self._kinds[self.behavior_specs[behavior_id].name]
            for (env_id, agent), action in zip(actors, kind.actions(actions[behavior_id], len(actors)), strict=True):
                orders[env_id][agent] = action
        tick = _Tick()
        for env_id, (instance, order) in enumerate(zip(self._instances, orders, strict=True)):
            self._take(env_id, instance.step(order), tick)
            if instance.over:
                self._begin_anew(env_id, tick)
        return self._result(tick)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """One instance as an RGB picture [height, width, 3].

        Raises:
            StageError: if the environment was not made with `render_mode: rgb_array`.
            BrokenEnvironmentError: if rendering fails.
        """
        env = self._instances[env_id].env
        mode = getattr(env, "render_mode", None)
        if mode != "rgb_array":
            raise StageError(
                f"{self._name}: it was made with render_mode {mode!r}; to get pictures, make it with options: "
                "{render_mode: rgb_array}"
            )
        try:
            return np.asarray(env.render(), np.uint8)
        except Exception as error:
            raise BrokenEnvironmentError(f"{self._name}: its render() raised {describe_error(error)}") from error

    def close(self) -> None:
        """Close all instances; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        for instance in self._instances:
            close = getattr(instance.env, "close", None)
            try:
                if callable(close):
                    close()
            except Exception as error:
                raise BrokenEnvironmentError(f"{self._name}: its close() raised {describe_error(error)}") from error

    def _spaces_of(self, agent: str) -> tuple[Any, Any]:
        env = self._instances[0].env
        try:
            return env.observation_space(agent), env.action_space(agent)
        except Exception as error:
            raise BrokenEnvironmentError(
                f"{self._name}: observation_space('{agent}') or action_space('{agent}') raised {describe_error(error)}"
            ) from error

    def _cast(self, agents: Sequence[str], *, everybody: bool) -> None:
        casting = self._casting
        casting.cast(agents, everybody=everybody)
        self._teams = casting.teams
        alike = casting.sides_are_alike
        if self._wants_rotation and not alike:
            raise StageError(
                f"{self._name}: environment.rotate_sides: its sides can't be changed, since there is one only or they "
                "have different behaviours; leave it out"
            )
        self._rotates = alike if self._wants_rotation is None else self._wants_rotation
        roles = casting.roles
        self._numbers = {agent: number for number, agent in enumerate(roles)}
        behaviors = dict.fromkeys(role.behavior for role in roles.values())
        check_names(self._observations, [casting.spaces_of(behavior)[0] for behavior in behaviors], self._name)
        grouped = {role.behavior for role in roles.values() if role.grouped}
        for behavior in behaviors:
            self._add_kind(behavior, behavior in grouped)
        told = ", ".join(f"{agent}: {self._behavior_id(agent, role.team)}" for agent, role in roles.items())
        log.info("%s: %s%s", self._name, told, " (teams change sides)" if self._rotates else "")

    def _add_kind(self, behavior: str, grouped: bool) -> None:
        spaces = self._casting.spaces_of(behavior)
        self._kinds[behavior] = Kind(behavior, *spaces, self._observations, grouped, self._name)
        self._shares |= grouped and self._instances[0].by_turns

    def _announce(self) -> None:
        """Make the specs, now that infos have been seen."""
        if not self._casting.roles:
            agents = dict.fromkeys(agent for instance in self._instances for agent in instance.env.agents)
            self._cast(list(agents), everybody=False)
        for instance in self._instances:
            for agent, info in instance.first_infos.items():
                if agent in self._casting.roles:
                    behavior = self._casting.roles[agent].behavior
                    # By turns the others' masks may well come with their turns only.
                    for kind in self._kinds.values() if instance.by_turns else [self._kinds[behavior]]:
                        kind.expect_masks(info)
        specs = [spec for agent in self._casting.roles for spec in self._specs_of(agent)]
        self.behavior_specs = {spec.behavior_id: spec for spec in sorted(specs, key=lambda spec: spec.behavior_id)}

    def _specs_of(self, agent: str) -> list[BehaviorSpec]:
        """All that an agent may be, in whichever team."""
        role = self._casting.roles[agent]
        teams = range(self._teams) if self._rotates else (role.team,)
        return [self._kinds[role.behavior].spec(self._behavior_id(agent, team)) for team in teams]

    def _behavior_id(self, agent: str, team: int) -> str:
        """`Name`, or `Name?team=N` where there are several teams."""
        behavior = self._casting.roles[agent].behavior
        return f"{behavior}?team={team}" if self._teams > 1 else behavior

    def _new_seed(self) -> int:
        return int(self._random.integers(_SEEDS))

    def _new_match(self, env_id: int) -> _Match:
        turn = (env_id + self._played[env_id]) % self._teams if self._rotates else 0
        return _Match(Score(self._teams), turn)

    def _begin_anew(self, env_id: int, tick: _Tick) -> None:
        """Note the result of the episode that is over, and begin the next one."""
        tick.over.append(env_id)
        tick.scores.append(self._matches[env_id].score.by(self._outcome))
        self._played[env_id] += 1
        self._matches[env_id] = self._new_match(env_id)
        self._take_beginning(env_id, self._begin_episode(env_id, self._new_seed()), tick)

    def _begin_episode(self, env_id: int, seed: int) -> list[Sight]:
        options = self._parameters.options(env_id) if self._parameters is not None else None
        return self._instances[env_id].reset(seed, options)

    def _take_beginning(self, env_id: int, sights: Sequence[Sight], tick: _Tick) -> None:
        self._take(env_id, sights, tick)
        if self._instances[env_id].over:
            raise BrokenEnvironmentError(f"{self._name}: an episode was over at its reset, before anybody could act")

    def _take(self, env_id: int, sights: Sequence[Sight], tick: _Tick) -> None:
        """Make rows of what the agents of an instance saw."""
        match = self._matches[env_id]
        for sight in sights:
            if sight.agent not in self._casting.roles:
                self._join(sight)
        if self._shares:
            self._share(env_id, match, sights)
        for sight in sights:
            playing = match.live.get(sight.agent)
            if playing is None:
                playing = match.live[sight.agent] = self._enter(env_id, sight.agent, match.turn)
            match.score.add(playing.team, sight.reward, at_the_end=sight.ended)
            if sight.ended:
                del match.live[sight.agent]
                if not playing.decided:
                    continue  # it never acted, so nothing of it is to be learned from
            rows = tick.rows.get(playing.behavior_id)
            if rows is None:
                rows = tick.rows[playing.behavior_id] = RowsOfBehavior()
            of_mates = match.earnings.of_mates(playing.group_id, sight.agent)
            rows.add(env_id, playing, sight, of_mates - playing.of_mates)
            playing.decided, playing.of_mates = True, of_mates

    def _share(self, env_id: int, match: _Match, sights: Sequence[Sight]) -> None:
        """Tell groups what their members received, before rows are made of it."""
        received = [(sight.agent, sight.reward, True) for sight in sights]
        seen = {sight.agent for sight in sights}
        waiting = self._instances[env_id].waiting()
        received += [(agent, reward, False) for agent, reward in waiting.items() if agent not in seen]
        for agent, reward, certain in received:
            role = self._casting.roles.get(agent)
            if role is not None and role.grouped:
                match.earnings.hear(self._group_id(env_id, role, match.turn), agent, reward, certain=certain)

    def _enter(self, env_id: int, agent: str, turn: int) -> Playing:
        """An agent begins an episode of its own."""
        role = self._casting.roles[agent]
        team = (role.team + turn) % self._teams
        number = self._numbers[agent] * self._teams + team
        agent_id = number * self.num_envs + env_id
        episode_id = self._episodes.get(agent_id, -1) + 1
        self._episodes[agent_id] = episode_id
        group_id = self._group_id(env_id, role, turn) if role.grouped else 0
        return Playing(self._behavior_id(agent, team), team, agent_id, episode_id, group_id)

    def _group_id(self, env_id: int, role: Role, turn: int) -> int:
        return 1 + env_id * self._teams + (role.team + turn) % self._teams

    def _join(self, sight: Sight) -> None:
        """An agent that was not among the first; only where the environment does not tell its possible agents."""
        agent = sight.agent
        role = self._casting.join(agent)
        self._numbers[agent] = len(self._numbers)
        if role.behavior not in self._kinds:
            self._add_kind(role.behavior, role.grouped)
            self._kinds[role.behavior].expect_masks(sight.info)
        new = {spec.behavior_id: spec for spec in self._specs_of(agent)}
        self.behavior_specs = {**new, **self.behavior_specs}

    def _result(self, tick: _Tick) -> StepResult:
        self._actors = {behavior_id: rows.actors for behavior_id, rows in tick.rows.items() if rows.actors}
        steps: dict[str, AgentSteps] = {}
        for behavior_id, spec in self.behavior_specs.items():
            rows = tick.rows.get(behavior_id)
            if rows is not None:
                steps[behavior_id] = rows.columns(self._kinds[spec.name], spec.grouped)
        return StepResult(steps, self._games(tick))

    def _games(self, tick: _Tick) -> GameResults | None:
        """The games that ended; with teams, none of them rather than None: an agent's end is not its game's."""
        if self._teams == 1:
            return None
        check_scores(tick.scores, tick.over, self._name)
        return GameResults(np.array(tick.over, np.int32), outcomes(tick.scores, self._teams))
