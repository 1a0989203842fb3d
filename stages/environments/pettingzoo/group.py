"""PettingZoo environments as an environment group: many agents, of several behaviours and teams.

Instances are stepped one after another; `BehaviorRows` turns their time steps into columns. In a turn-based environment
a tick is one action of each instance, and only the agents that act next have decision rows, with all their rewards
since their last action.

If an instance has several teams, each episode is a game between them (`teams`). Agents have fixed sides, but the teams
that play the sides may rotate: with T teams, side s of instance i is played in its episode e by team (s + i + e) mod T.
An agent id identifies an agent's name *and* team in an instance, so its behaviour id never changes.

Spaces are Gymnasium spaces, read by `stages/environments/spaces/`. `BehaviorSpaces` adds what is specific to
PettingZoo: rows arrive agent by agent, and the action mask is under the key `action_mask` in the observation or, in
newer versions, in the info.

`making` finds and makes environments, `instances` steps one of them, `teams` assigns behaviours and teams.

Axis letters: k observations, d decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.config import ObservationSettings, RoleSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.checks import addresses_of, raise_broken, space_problem, stack
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.pettingzoo.instances import Agent, Instance, LimitedInstance, TimeStep, copied
from headrace.stages.environments.pettingzoo.teams import (
    AgentRole,
    GroupRewards,
    OutcomeRule,
    RoleAssignment,
    TeamScores,
    game_outcomes,
)
from headrace.stages.environments.protocol import AgentSteps, GameResults, StatisticValues, StepResult
from headrace.stages.environments.rendering import picture_of
from headrace.stages.environments.spaces.columns import SpaceColumns
from headrace.stages.environments.spaces.masks import MASK, Masks
from headrace.stages.environments.spaces.observations import check_names
from headrace.stages.errors import (
    BrokenEnvironmentError,
    NotFiniteError,
    StageError,
    Who,
    describe_error,
    describe_fault,
    unfit_number,
)

Space = spaces.Space[Any]


class BehaviorSpaces(SpaceColumns):
    """The spaces of one behaviour's agents.

    Args:
        behavior: the behaviour name.
        observation_space: the observation space of each agent; `action_mask` in it is a mask, not an observation.
        action_space: the action space of each agent.
        settings, owner, exact, clips: see `SpaceColumns`.

    Raises:
        StageError: if a space is not supported, or the settings do not fit it.
    """

    def __init__(
        self,
        behavior: str,
        observation_space: Space,
        action_space: Space,
        settings: Mapping[str, ObservationSettings],
        owner: str,
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, owner, settings, exact, clips)
        self.behavior = behavior
        self._observed_space = _without_mask(observation_space)
        self._acted_space = action_space

    def observations(self, observed: Sequence[Any], who: Who, spared: Masks | None = None) -> tuple[Array, ...]:
        """Convert k observations from the environment to one new array [k, *shape] for each observation in the spec.

        Args:
            observed: the observations.
            who: returns the name of a row's agent.
            spared: as in `Extractor`.

        Raises:
            BrokenEnvironmentError: if an observation does not fit its space.
            NotFiniteError: if a number is NaN or infinite, or too large for float32.
        """
        batch = stack(self._observed_space, observed, "reset() or step()", who)
        try:
            return tuple([part.extract(batch, who, spared) for part in self.parts])
        except (LookupError, TypeError, ValueError) as error:
            raise BrokenEnvironmentError(
                f"{who(None)}: an observation is not in its space {self._observed_space}: {describe_error(error)}"
            ) from error

    def masks_of(self, time_steps: Sequence[TimeStep], who: Who) -> Masks | None:
        """Return the masks [d, choices] for the time steps of d agents; None if the spec has none.

        Raises the same errors as `AgentMasks.read`. `who` returns the name of a row's agent.
        """
        observed = [time_step.observation.get(MASK) for time_step in time_steps] if self.mask_observed else None
        return self.masks.read(len(time_steps), observed, [time_step.info.get(MASK) for time_step in time_steps], who)

    def one_by_one(self, batch: ActionBatch, count: int) -> list[Any]:
        """Convert d = `count` decisions to a list of single actions for the environment."""
        return _one_by_one(self._acted_space, self.actions(count).to_environment(batch))


def _without_mask(space: Space) -> Space:
    """Return an observation space without its action mask, or the same object if it has no mask."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space
    return spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK})


def _one_by_one(space: Space, batch: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        columns = [_one_by_one(inner, batch[key]) for key, inner in space.spaces.items()]
        return [dict(zip(space.spaces, values, strict=True)) for values in zip(*columns, strict=True)]
    if isinstance(space, spaces.Tuple):
        columns = [_one_by_one(inner, part) for inner, part in zip(space.spaces, batch, strict=True)]
        return list(zip(*columns, strict=True))
    return list(batch)


# The rows of one tick, collected agent by agent and converted to columns: one AgentSteps per behaviour id.


@dataclass(slots=True)
class AgentEpisode:
    """An agent's running episode."""

    behavior_id: str
    team: int
    agent_id: int
    episode_id: int
    group_id: int = 0
    decided: bool = False
    """True once the agent has made a decision. The result of the decision is in the agent's next row."""
    mates_rewards: float = 0.0
    """In a turn-based environment: the sum of the other group members' rewards up to the agent's last row."""


@dataclass(slots=True)
class RunningGame:
    """An instance's running episode, which is a game between its teams."""

    score: TeamScores
    rotation: int
    """Number of positions by which teams are rotated relative to sides."""
    live: dict[Agent, AgentEpisode] = field(default_factory=dict)
    group_rewards: GroupRewards = field(default_factory=GroupRewards)


class Row(NamedTuple):
    """An agent's row in one tick."""

    time_step: TimeStep
    ids: tuple[int, int, int, int]
    """The agent's id, its instance, episode id and group id."""
    reward: float
    group_reward: float


@dataclass(slots=True)
class BehaviorRows:
    """The rows of one behaviour id in one tick, with endings and decisions kept separate."""

    ending: list[Row] = field(default_factory=list)
    deciding: list[Row] = field(default_factory=list)

    def add(self, env_id: int, episode: AgentEpisode, time_step: TimeStep, ended: bool, group_reward: float) -> None:
        """Add an agent's time step; `group_reward` is the other group members' reward since the agent's last row."""
        rewards = (time_step.reward, group_reward) if episode.decided else (0.0, 0.0)
        row = Row(time_step, (episode.agent_id, env_id, episode.episode_id, episode.group_id), *rewards)
        (self.ending if ended else self.deciding).append(row)

    def columns(self, spaces: BehaviorSpaces, grouped: bool) -> AgentSteps:
        """Return all rows as columns.

        Args:
            spaces: the behaviour's spaces.
            grouped: True if the agents belong to groups.

        Raises:
            NotFiniteError: if a reward is NaN or infinite; the message names the agent.
            BrokenEnvironmentError: if an observation or mask does not fit its space.
        """
        rows, ended = self.ending + self.deciding, len(self.ending)
        time_steps = [row.time_step for row in rows]
        ids = np.array([row.ids for row in rows], np.int64)

        def who(row: int | None) -> str:
            if row is None:
                return f"{spaces.owner}: {spaces.behavior}"
            return f"{spaces.owner}: agent '{time_steps[row].agent}' of {spaces.behavior} in instance {ids[row, 1]}"

        group_rewards = [row.group_reward for row in rows]
        spared = np.array([time_step.terminated for time_step in time_steps], np.bool_) if ended else None
        return AgentSteps(
            agent_ids=ids[:, 0].copy(),
            env_ids=ids[:, 1].astype(np.int32),
            episode_ids=ids[:, 2].copy(),
            observations=spaces.observations([time_step.observation for time_step in time_steps], who, spared),
            rewards=_finite([row.reward for row in rows], "its reward", who),
            ended=ended,
            terminated=np.array([time_step.terminated for time_step in time_steps[:ended]], np.bool_),
            truncated=np.array([time_step.truncated for time_step in time_steps[:ended]], np.bool_),
            action_masks=spaces.masks_of(time_steps[ended:], lambda row: who(None if row is None else row + ended)),
            group_ids=ids[:, 3].copy() if grouped else None,
            group_rewards=_finite(group_rewards, "its teammates' reward", who) if grouped else None,
        )


def _finite(received: list[float], what: str, who: Who) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # reported below
        rewards = np.array(received, np.float32)
    finite = np.isfinite(rewards)
    if not finite.all():
        row = int(np.argmin(finite))
        raise NotFiniteError(f"{who(row)}: {what} is {unfit_number(received[row])}")
    return rewards


log = logging.getLogger(__name__)

_SEEDS = 2**31


@dataclass(slots=True)
class _Tick:
    rows: dict[str, BehaviorRows] = field(default_factory=dict)
    over: list[int] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)


class PettingZooGroup:
    """Instances of a PettingZoo environment, parallel or turn-based.

    The specs are known only after the first reset, because its infos may contain action masks.

    Args:
        instances: instances of one environment, which this group closes.
        behavior: behaviour name for agents whose role names no behaviour.
        name: the environment's name, used in messages.
        roles: `environment.behaviors`: agents' behaviour names and teams, by pattern.
        observations: settings for observations whose spaces are ambiguous, keyed by name.
        outcome: the rule by which a game is won, see `environment.outcome`.
        rotate_sides: True to make teams change sides in each episode; None to do so only if all sides have the same
            behaviours.
        info_keys: `environment.info_keys`.
        exact, clips: see `SpaceColumns`.

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
        info_keys: Sequence[str] = (),
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        self.num_envs = len(instances)
        self.limits_episodes = any(isinstance(instance, LimitedInstance) for instance in instances)
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._instances = instances
        self._name = name
        self._episode_infos = EpisodeInfos(info_keys, name)
        self._observations = observations or {}
        self._conversion = exact, clips
        self._outcome: OutcomeRule = outcome
        self._wants_rotation = rotate_sides
        self._rotates = False
        self._teams = 1
        self._tracks_group_rewards = False
        self._assignment = RoleAssignment(roles or {}, behavior, self._spaces_of, name, instances[0].apart)
        self._spaces: dict[str, BehaviorSpaces] = {}
        self._numbers: dict[Agent, int] = {}
        self._episodes: dict[int, int] = {}
        self._games: list[RunningGame] = []
        self._played = [0] * self.num_envs
        self._actors: dict[str, list[tuple[int, Agent]]] = {}
        self._random = np.random.default_rng()
        self._parameters: EpisodeParameters | None = None
        self._shared = False
        """True if instances return the same arrays, in which case each observation is copied."""
        self._closed = False
        try:
            agents = getattr(instances[0].env, "possible_agents", None)
            if agents is not None and len(agents):
                self._assign_roles(list(agents), everybody=True)
        except StageError:
            self.close()
            raise

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Pass parameters to the environments at the start of each episode, as options of `reset`."""
        self._parameters = parameters

    def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances.

        Args:
            seed: instance i's first episode is seeded with seed + i, its later episodes with numbers drawn from the
                seed; None to continue that sequence.

        Raises:
            BrokenEnvironmentError: if an environment raises, or returns values outside its spaces.
        """
        if seed is None:
            seeds = [self._new_seed() for _ in self._instances]
        else:
            # A seed determines everything that follows, including the numbers of episodes and the sides.
            self._random = np.random.default_rng(seed)
            self._episodes.clear()
            self._played = [0] * self.num_envs
            seeds = [(int(seed) + env_id) % _SEEDS for env_id in range(self.num_envs)]
        first, addresses = list[list[TimeStep]](), list[int]()
        for env_id, instance_seed in enumerate(seeds):
            time_steps = self._begin_episode(env_id, instance_seed)
            addresses += {address for time_step in time_steps for address in addresses_of(time_step.observation)}
            first.append([copied(time_step) for time_step in time_steps])
        self._shared = len({*addresses}) < len(addresses)
        if not self.behavior_specs:
            self._make_specs()
        tick = _Tick()
        self._games = [self._new_game(env_id) for env_id in range(self.num_envs)]
        for env_id, time_steps in enumerate(first):
            self._add_first_rows(env_id, time_steps, tick)
        return self._result(tick)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances. In parallel instances, all agents act; in turn-based instances, one agent acts.

        Raises:
            BrokenEnvironmentError: if an environment raises, or breaks the rules of its API.
            NotFiniteError: if a reward is NaN or infinite.
            StageError: if the actions do not match the agents that decide.
        """
        orders: list[dict[Agent, Any]] = [{} for _ in self._instances]
        for behavior_id, actors in self._actors.items():
            spaces = self._spaces[self.behavior_specs[behavior_id].name]
            decided = spaces.one_by_one(actions[behavior_id], len(actors))
            for (env_id, agent), action in zip(actors, decided, strict=True):
                orders[env_id][agent] = action
        tick = _Tick()
        for env_id, (instance, order) in enumerate(zip(self._instances, orders, strict=True)):
            time_steps = instance.step(order)
            self._add_rows(
                env_id, [copied(time_step) for time_step in time_steps] if self._shared else time_steps, tick
            )
            if instance.over:
                self._end_game(env_id, tick)
        return self._result(tick)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return an RGB image [height, width, 3] of one instance.

        Raises:
            StageError, BrokenEnvironmentError: in the same cases as `picture_of`.
        """
        env = self._instances[env_id].env
        return picture_of(env, env.render, self._name)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, such as `render_fps`."""
        return getattr(self._instances[0].env, "metadata", None) or {}

    @property
    def agents(self) -> Mapping[str, Sequence[str]]:
        """The agents of each behaviour id in the first instance's running game."""
        names: dict[str, list[str]] = {}
        for agent, role in self._assignment.roles.items() if self._games else ():
            team = (role.team + self._games[0].rotation) % self._teams
            names.setdefault(self._behavior_id(agent, team), []).append(str(agent))
        return names

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
                raise_broken(error, self._name, "close")

    def _spaces_of(self, agent: Agent) -> tuple[Any, Any]:
        env = self._instances[0].env
        try:
            spaces = env.observation_space(agent), env.action_space(agent)
        except Exception as error:
            raise BrokenEnvironmentError(
                f"{self._name}: observation_space('{agent}') or action_space('{agent}') raised {describe_fault(error)}"
            ) from error
        for space, which in zip(spaces, ("observation_space", "action_space"), strict=True):
            if problem := space_problem(space, which):
                raise StageError(f"{self._name}: agent '{agent}': {problem}")
        return spaces

    def _assign_roles(self, agents: Sequence[Agent], *, everybody: bool) -> None:
        assignment = self._assignment
        assignment.assign(agents, everybody=everybody)
        self._teams = assignment.teams
        alike = assignment.symmetric
        if self._wants_rotation and not alike:
            raise StageError(
                f"{self._name}: environment.rotate_sides: the sides can't be swapped, because there is only one side "
                "or the sides have different behaviours; leave it out"
            )
        self._rotates = alike if self._wants_rotation is None else self._wants_rotation
        roles = assignment.roles
        self._numbers = {agent: number for number, agent in enumerate(roles)}
        behaviors = dict.fromkeys(role.behavior for role in roles.values())
        for behavior in behaviors:
            self._add_spaces(behavior)
        check_names(self._observations, [part for spaces in self._spaces.values() for part in spaces.parts], self._name)
        names = ", ".join(f"{agent}: {self._behavior_id(agent, role.team)}" for agent, role in roles.items())
        log.info("%s: %s%s", self._name, names, " (teams swap sides)" if self._rotates else "")

    def _add_spaces(self, behavior: str) -> None:
        spaces = self._assignment.spaces_of(behavior)
        self._spaces[behavior] = BehaviorSpaces(behavior, *spaces, self._observations, self._name, *self._conversion)

    def _make_specs(self) -> None:
        """Make the specs, after the first infos have arrived."""
        if not self._assignment.roles:
            agents = dict.fromkeys(agent for instance in self._instances for agent in instance.env.agents)
            self._assign_roles(list(agents), everybody=False)
        for instance in self._instances:
            for agent, info in instance.first_infos.items():
                if agent in self._assignment.roles:
                    behavior = self._assignment.roles[agent].behavior
                    # In turn-based environments, the other agents' masks may arrive only when their turns come.
                    for spaces in self._spaces.values() if instance.by_turns else [self._spaces[behavior]]:
                        spaces.masks.expect(info)
        specs = [spec for agent in self._assignment.roles for spec in self._specs_of(agent)]
        self.behavior_specs = {spec.behavior_id: spec for spec in sorted(specs, key=lambda spec: spec.behavior_id)}

    def _specs_of(self, agent: Agent) -> list[BehaviorSpec]:
        """Return an agent's specs, one for each team in which it may play."""
        role = self._assignment.roles[agent]
        teams = range(self._teams) if self._rotates else (role.team,)
        mates = [other for other in self._assignment.roles.values() if other.behavior == role.behavior]
        grouped = any(other.grouped for other in mates)
        self._tracks_group_rewards |= grouped and self._instances[0].by_turns
        return [self._spaces[role.behavior].spec(self._behavior_id(agent, team), grouped) for team in teams]

    def _behavior_id(self, agent: Agent, team: int) -> str:
        """Return `Name`, or `Name?team=N` if there are several teams."""
        behavior = self._assignment.roles[agent].behavior
        return f"{behavior}?team={team}" if self._teams > 1 else behavior

    def _new_seed(self) -> int:
        return int(self._random.integers(_SEEDS))

    def _new_game(self, env_id: int) -> RunningGame:
        rotation = (env_id + self._played[env_id]) % self._teams if self._rotates else 0
        return RunningGame(TeamScores(self._teams), rotation)

    def _end_game(self, env_id: int, tick: _Tick) -> None:
        tick.over.append(env_id)
        tick.scores.append(self._games[env_id].score.by(self._outcome))
        self._played[env_id] += 1
        self._games[env_id] = self._new_game(env_id)
        time_steps = self._begin_episode(env_id, self._new_seed())
        self._add_first_rows(
            env_id, [copied(time_step) for time_step in time_steps] if self._shared else time_steps, tick
        )

    def _begin_episode(self, env_id: int, seed: int) -> list[TimeStep]:
        options = self._parameters.options(env_id) if self._parameters is not None else None
        return self._instances[env_id].reset(seed, options)

    def _add_first_rows(self, env_id: int, time_steps: Sequence[TimeStep], tick: _Tick) -> None:
        self._add_rows(env_id, time_steps, tick)
        if self._instances[env_id].over:
            raise BrokenEnvironmentError(
                f"{self._name}: agents is empty after reset(), so the episode ended before any agent could act; "
                "expected the agents that act first"
            )

    def _add_rows(self, env_id: int, time_steps: Sequence[TimeStep], tick: _Tick) -> None:
        game = self._games[env_id]
        for time_step in time_steps:
            if time_step.agent not in self._assignment.roles:
                self._join(time_step)
        if self._tracks_group_rewards:
            # Add the members' rewards to their groups before rows are made from them.
            received = [(time_step.agent, time_step.reward, True) for time_step in time_steps]
            seen = {time_step.agent for time_step in time_steps}
            waiting = self._instances[env_id].waiting()
            received += [(agent, reward, False) for agent, reward in waiting.items() if agent not in seen]
            for agent, reward, final in received:
                role = self._assignment.roles.get(agent)
                if role is not None and role.grouped:
                    game.group_rewards.add(self._group_id(env_id, role, game.rotation), agent, reward, final=final)
        for time_step in time_steps:
            agent, ended = time_step.agent, time_step.ended
            episode = game.live.get(agent)
            if episode is None:
                episode = game.live[agent] = self._begin_agent_episode(env_id, agent, game.rotation)
            if self._teams > 1:
                game.score.add(episode.team, time_step.reward, at_the_end=ended)
            if ended:
                del game.live[agent]
                if not episode.decided:
                    continue  # the agent never acted, so it has no step to learn from
            rows = tick.rows.get(episode.behavior_id)
            if rows is None:
                rows = tick.rows[episode.behavior_id] = BehaviorRows()
            mates = game.group_rewards.of_mates(episode.group_id, agent) if self._tracks_group_rewards else 0.0
            rows.add(env_id, episode, time_step, ended, mates - episode.mates_rewards)
            episode.decided, episode.mates_rewards = True, mates

    def _begin_agent_episode(self, env_id: int, agent: Agent, rotation: int) -> AgentEpisode:
        role = self._assignment.roles[agent]
        team = (role.team + rotation) % self._teams
        number = self._numbers[agent] * self._teams + team
        agent_id = number * self.num_envs + env_id
        episode_id = self._episodes.get(agent_id, -1) + 1
        self._episodes[agent_id] = episode_id
        group_id = self._group_id(env_id, role, rotation) if role.grouped else 0
        return AgentEpisode(self._behavior_id(agent, team), team, agent_id, episode_id, group_id)

    def _group_id(self, env_id: int, role: AgentRole, rotation: int) -> int:
        return 1 + env_id * self._teams + (role.team + rotation) % self._teams

    def _join(self, time_step: TimeStep) -> None:
        """Add an agent that was absent at the start. This happens only in environments without possible_agents."""
        agent = time_step.agent
        role = self._assignment.join(agent)
        self._numbers[agent] = len(self._numbers)
        if role.behavior not in self._spaces:
            self._add_spaces(role.behavior)
            self._spaces[role.behavior].masks.expect(time_step.info)
        new = {spec.behavior_id: spec for spec in self._specs_of(agent)}
        self.behavior_specs = {**new, **self.behavior_specs}

    def _result(self, tick: _Tick) -> StepResult:
        self._actors = {
            behavior_id: [(row.ids[1], row.time_step.agent) for row in rows.deciding]
            for behavior_id, rows in tick.rows.items()
            if rows.deciding
        }
        steps: dict[str, AgentSteps] = {}
        for behavior_id, spec in self.behavior_specs.items():
            rows = tick.rows.get(behavior_id)
            if rows is not None:
                steps[behavior_id] = rows.columns(self._spaces[spec.name], spec.grouped)
        return StepResult(steps, self._game_results(tick), behavior_statistics=self._statistics(tick))

    def _statistics(self, tick: _Tick) -> dict[str, Mapping[str, StatisticValues]]:
        """Return the statistics from the infos of ended episodes, keyed by behaviour name."""
        infos: dict[str, list[Mapping[str, Any]]] = {}
        for behavior_id, rows in tick.rows.items():
            if rows.ending:
                of_behavior = infos.setdefault(self.behavior_specs[behavior_id].name, [])
                of_behavior += [row.time_step.info for row in rows.ending]
        return {behavior: self._episode_infos.of_episodes(ended) for behavior, ended in infos.items()}

    def _game_results(self, tick: _Tick) -> GameResults | None:
        """Return the games that ended. Return None if there is only one team: a game may outlast an agent's episode."""
        if self._teams == 1:
            return None
        if not np.isfinite(np.asarray(tick.scores, np.float64)).all():  # an agent that never acted has no row
            raise NotFiniteError(
                f"{self._name}: the teams' rewards add up to {tick.scores} in instances {tick.over}; expected finite "
                "numbers"
            )
        return GameResults(np.array(tick.over, np.int32), game_outcomes(tick.scores, self._teams))
