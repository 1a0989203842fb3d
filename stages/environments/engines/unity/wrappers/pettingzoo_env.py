"""A Unity program with any number of agents as PettingZoo environments, under ML-Agents' names for these classes.

An agent is called `<behaviour id>?agent_id=<its number in Unity>`. `agents` lists the agents that need a decision now;
the others are absent until they need one. In Unity, an agent keeps its number over its episodes, and gets a new one
when it is enabled again. In PettingZoo, an agent that has ended never returns, so the name of its second episode ends
with `&life=2`. `possible_agents` lists the agents that have not ended, and those whose end the last step returned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

from gymnasium import Space, spaces
from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]

from headrace.stages.environments.engines.unity.errors import UnityActionException, UnityException
from headrace.stages.environments.engines.unity.wrappers.gymnasium_env import ActionMap, unlimited
from headrace.stages.environments.spaces.masks import MASK

log = logging.getLogger(__name__)

_AGENT = "?agent_id="
OBSERVATION = "observation"
"""Key of the observation, alongside `MASK`, for agents with discrete actions."""


class _Sensors(tuple[Any, ...]):
    """One agent's observation from several sensors: a value of a Tuple space, with `dtype` for PettingZoo."""

    __slots__ = ()
    dtype = None


class _AgentKind:
    """A behaviour's spaces, and the agents that need decisions now, in Unity's order."""

    def __init__(self, name: str, spec: Any, seed: int | None) -> None:
        self.actions = ActionMap(spec.action_spec, name, seed=seed)
        observed: list[Space[Any]] = [unlimited(sensor.shape) for sensor in spec.observation_specs]
        if not observed:
            raise UnityException(f"{name}: it has no observations: give it a sensor")
        self._single = len(observed) == 1
        self.observation_space: Space[Any] = observed[0] if self._single else spaces.Tuple(observed)
        self._masks = self.actions.mask_space
        if self._masks is not None:
            self.observation_space = spaces.Dict({OBSERVATION: self.observation_space, MASK: self._masks})
        self.deciding: list[str] = []

    def seen(self, columns: list[Any], row: int, mask: Any) -> Any:
        """Return one agent's observation."""
        values = columns[0][row] if self._single else _Sensors(column[row] for column in columns)
        return values if self._masks is None else {OBSERVATION: values, MASK: mask}


class AgentData(NamedTuple):
    """The data of agents that need a decision or whose episodes have ended, keyed by agent name."""

    observations: dict[str, Any]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]


class UnityParallelEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo has no types
    """Agents of a Unity program that act simultaneously, with the constructor of ML-Agents' class of this name.

    An observation is an array or, with several sensors, a tuple of arrays. With discrete actions, it is a dict of
    `observation` and `action_mask`. The mask is an int8 array, 1 where a choice is allowed, or a tuple of arrays if
    there are several branches. `infos` have `behavior_name`, `group_id` and `group_reward`. At an episode's end, they
    also have `interrupted` (the episode was truncated). With discrete actions, they have the `action_mask` in the form
    that the action space's `sample` takes.

    Args:
        env: the program, through its low-level interface (`UnityEnvironment`); it is closed with the environment.
        seed: seed for samples of the action spaces.

    Attributes:
        agents: the agents that need a decision now.
        possible_agents: the agents that have not ended, and those whose end the last step returned.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "unity", "render_modes": [], "is_parallelizable": True}
    render_mode = None

    def __init__(self, env: Any, seed: int | None = None) -> None:
        self._env = env
        self._seed = seed
        self._behaviors: dict[str, _AgentKind] = {}
        self._alive: dict[tuple[str, int], str] = {}
        """Names of the agents that have needed a decision and have not ended, keyed by behaviour id and number."""
        self._lives: dict[tuple[str, int], int] = {}
        self._warned = False
        self.agents: list[str] = []
        self.possible_agents: list[str] = []
        self._begin()

    @property
    def side_channel(self) -> Mapping[str, Any]:
        """The program's side channels, keyed by class name."""
        return cast("Mapping[str, Any]", self._env.side_channels)

    @property
    def observation_spaces(self) -> dict[str, Space[Any]]:
        """The observation spaces of all possible agents."""
        return {agent: self.observation_space(agent) for agent in self.possible_agents}

    @property
    def action_spaces(self) -> dict[str, Space[Any]]:
        """The action spaces of all possible agents."""
        return {agent: self.action_space(agent) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Space[Any]:
        """Return an agent's observation space, which is that of its behaviour."""
        return self._behavior_of(agent).observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """Return an agent's action space, which is that of its behaviour."""
        return self._behavior_of(agent).actions.space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Reset the program. `seed` has no effect: the program's random numbers follow the seed given at its start."""
        if seed is not None and not self._warned:
            self._warned = True
            log.warning(
                "reset(seed=…) has no effect in Unity, which keeps the seed with which UnityEnvironment started it."
            )
        data = self._begin()
        return data.observations, data.infos

    def step(self, actions: dict[str, Any]) -> AgentData:
        """Let all `agents` act, and wait until some need a decision, or all episodes have ended.

        Raises:
            UnityActionException: if an action is missing, is not in its space, or belongs to an agent that needs none.
        """
        if actions.keys() != set(self.agents):
            self._refuse(set(actions))
        for name, behavior in self._behaviors.items():
            if who := behavior.deciding:
                self._env.set_actions(name, behavior.actions.read([actions[agent] for agent in who], who))
        self._env.step()
        return self._read()

    def close(self) -> None:
        """End the program."""
        self._env.close()

    def _behavior_of(self, agent: str) -> _AgentKind:
        name = agent.partition(_AGENT)[0]
        if name not in self._behaviors:
            names = ", ".join(self._behaviors) or "none yet"
            raise UnityException(f"unknown agent {agent!r}; the behaviours are: {names}")
        return self._behaviors[name]

    def _refuse(self, acting: set[str]) -> None:
        deciding = ", ".join(self.agents) or "none; call reset()"
        for agent in sorted(acting - set(self.agents)):
            raise UnityActionException(f"{agent} is not requesting a decision; agents that are: {deciding}")
        missing = ", ".join(sorted(set(self.agents) - acting))
        raise UnityActionException(f"no action was passed for {missing}, which request one")

    def _begin(self) -> AgentData:
        """Reset the program, and wait until an agent needs a decision."""
        self._env.reset()
        self._alive.clear()
        self._lives.clear()
        self.possible_agents = []
        data = self._read()
        while not self.agents:
            self._env.step()
            data = self._read()
        return data

    def _read(self) -> AgentData:
        """Return the program's data; step the program as long as no running agent needs a decision."""
        data = AgentData({}, {}, {}, {}, {})
        while True:
            for name, spec in self._env.behavior_specs.items():
                if name not in self._behaviors:
                    self._behaviors[name] = _AgentKind(name, spec, self._seed)
                decisions, endings = self._env.get_steps(name)
                for row, number in enumerate(endings.agent_id):
                    agent = self._alive.pop((name, int(number)), None)
                    if agent is not None:  # an agent that never needed a decision was never exposed
                        self._add(data, agent, name, endings, row, bool(endings.interrupted[row]))
                deciding = self._behaviors[name].deciding = [self._named(name, int(id_)) for id_ in decisions.agent_id]
                for row, agent in enumerate(deciding):
                    self._add(data, agent, name, decisions, row)
            self.agents = [agent for behavior in self._behaviors.values() for agent in behavior.deciding]
            if self.agents or not self._alive:
                known = {*self._alive.values(), *data.observations}
                self.possible_agents = [agent for agent in self.possible_agents if agent in known]
                return data
            self._env.step()

    def _named(self, name: str, number: int) -> str:
        """Return the name of an agent that needs a decision."""
        if (name, number) not in self._alive:
            life = self._lives[name, number] = self._lives.get((name, number), 0) + 1
            agent = self._alive[name, number] = f"{name}{_AGENT}{number}" + (f"&life={life}" if life > 1 else "")
            self.possible_agents.append(agent)
        return self._alive[name, number]

    def _add(self, data: AgentData, agent: str, name: str, steps: Any, row: int, cut: bool | None = None) -> None:
        """Add an agent's row; `cut` is True if its episode was interrupted, False if it ended, None if it continues."""
        behavior = self._behaviors[name]
        forbidden = None if cut is not None or steps.action_mask is None else [mask[row] for mask in steps.action_mask]
        mask = behavior.actions.mask(forbidden)
        info = data.infos[agent] = {
            "behavior_name": name,
            "group_id": int(steps.group_id[row]),
            "group_reward": float(steps.group_reward[row]),
        }
        if mask is not None:
            info[MASK] = mask
        if cut is not None:
            info["interrupted"] = cut
        data.observations[agent] = behavior.seen(steps.obs, row, mask)
        data.rewards[agent] = float(steps.reward[row])
        data.terminations[agent], data.truncations[agent] = cut is False, cut is True


class UnityAECEnv(AECEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo has no types
    """Agents of a Unity program that act one after the other, through PettingZoo's `last` and `step`.

    Each agent's observation is the one from its decision request, because the program continues only once all requests
    are answered. Observations, infos and arguments are the same as in `UnityParallelEnv`.
    """

    metadata = UnityParallelEnv.metadata
    render_mode = None

    def __init__(self, env: Any, seed: int | None = None) -> None:
        self._parallel = UnityParallelEnv(env, seed)
        self.agents: list[str] = []
        self._observations: dict[str, Any] = {}
        self._actions: dict[str, Any] = {}
        self.agent_selection = ""

    @property
    def possible_agents(self) -> list[str]:
        """See `UnityParallelEnv`."""
        return self._parallel.possible_agents

    @property
    def side_channel(self) -> Mapping[str, Any]:
        """See `UnityParallelEnv`."""
        return self._parallel.side_channel

    @property
    def observation_spaces(self) -> dict[str, Space[Any]]:
        """The observation spaces of all possible agents."""
        return self._parallel.observation_spaces

    @property
    def action_spaces(self) -> dict[str, Space[Any]]:
        """The action spaces of all possible agents."""
        return self._parallel.action_spaces

    def observation_space(self, agent: str) -> Space[Any]:
        """Return an agent's observation space."""
        return self._parallel.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """Return an agent's action space."""
        return self._parallel.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset the program. Raises the same errors as `UnityParallelEnv.reset`."""
        observations, infos = self._parallel.reset(seed, options)
        self._actions = {}
        no = dict.fromkeys(observations, False)
        self._adopt(AgentData(observations, dict.fromkeys(observations, 0.0), no, dict(no), infos))

    def observe(self, agent: str) -> Any:
        """Return an agent's observation from its decision request, or from the end of its episode."""
        return self._observations[agent]

    def step(self, action: Any) -> None:
        """Let the selected agent act. An agent whose episode has ended takes None.

        Raises:
            UnityActionException: if the action is not in its space, or if no agent is selected, as before `reset`.
        """
        if not self.agents:
            raise UnityActionException("no agent needs a decision: call reset()")
        agent = self.agent_selection
        if self._has_ended(agent):
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._actions[agent] = action
        waiting = self._parallel.agents[len(self._actions) :]
        if waiting:
            self.agent_selection = waiting[0]
            return
        actions, self._actions = self._actions, {}
        self._adopt(self._parallel.step(actions))
        self._deads_step_first()

    def close(self) -> None:
        """End the program."""
        self._parallel.close()

    def _adopt(self, data: AgentData) -> None:
        self._observations, self.rewards, self.terminations, self.truncations, self.infos = data
        self._cumulative_rewards = dict(data.rewards)
        self.agents = [*self._parallel.agents, *(agent for agent in data.infos if self._has_ended(agent))]
        self.agent_selection = self.agents[0] if self.agents else ""
        self._skip_agent_selection = None

    def _has_ended(self, agent: str) -> bool:
        return bool(self.terminations[agent] or self.truncations[agent])
