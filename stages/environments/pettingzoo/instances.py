"""One PettingZoo environment behind one interface for both of its APIs.

`reset` and `step` return time steps: those of agents that ended first, then those of agents that decide now. In a
parallel environment these are all agents; in a turn-based one (AEC, agent-environment cycle) one agent decides, with
all its rewards since its last turn.

This module uses the methods of PettingZoo's API, none of its classes, so any object with these methods will do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from headrace.stages.errors import BrokenEnvironmentError, describe_error


class TimeStep(NamedTuple):
    """The values that an environment returns for one agent, at its end or before it decides."""

    agent: str
    observation: Any
    reward: float
    """Since its previous time step."""
    info: Mapping[str, Any]
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        """True if its episode is over."""
        return self.terminated or self.truncated


class Instance:
    """An environment that is stepped by the group."""

    by_turns = False
    """True if one agent acts after the other."""

    def __init__(self, env: Any, name: str) -> None:
        self.env = env
        self.over = True
        """True if no agent is left."""
        self.first_infos: Mapping[str, Mapping[str, Any]] = {}
        """The infos of the last reset, by agent."""
        self._name = name

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode; the environment gets options only if there are any."""
        raise NotImplementedError

    def step(self, actions: Mapping[str, Any]) -> list[TimeStep]:
        """Advance with the actions of all agents that decide."""
        raise NotImplementedError

    def waiting(self) -> Mapping[str, float]:
        """Preliminary rewards of waiting agents since their last time step, where the environment has them."""
        return {}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode instead of letting these agents decide; returns the endings of all that are left."""
        self.over = True
        return [_copied(time_step._replace(truncated=True)) for time_step in deciding]


def api_of(env: Any) -> Literal["parallel", "aec"] | None:
    """The PettingZoo API that an object has, None for neither."""
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        return None
    by_turns = all(callable(getattr(env, name, None)) for name in ("last", "observe"))
    return "aec" if by_turns else "parallel"


def instance_of(env: Any, name: str) -> Instance:
    """Wrap an environment by the API that it has.

    Args:
        env: a ParallelEnv, an AECEnv, or an object with the same methods.
        name: what messages call it.
    """
    return TurnInstance(env, name) if api_of(env) == "aec" else ParallelInstance(env, name)


class ParallelInstance(Instance):
    """An environment in which all agents act at once; agents may die and join."""

    def __init__(self, env: Any, name: str) -> None:
        super().__init__(env, name)
        self._live: list[str] = []
        self._seen: Mapping[str, Any] = {}

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode, in which all agents decide."""
        with _blaming(self._name, "reset"):
            self._seen, infos = self.env.reset(**_arguments(seed, options))
            self.first_infos = infos
            self._live = list(self.env.agents)
            self.over = not self._live
            return [TimeStep(agent, self._seen[agent], 0.0, infos.get(agent, {}), False, False) for agent in self._live]

    def step(self, actions: Mapping[str, Any]) -> list[TimeStep]:
        """Advance; returns the endings, then the agents that decide next."""
        with _blaming(self._name, "step"):
            seen, rewards, terminations, truncations, infos = self.env.step(actions)
            left = list(self.env.agents)
        ending, deciding = [], []
        for agent in self._live:
            terminated, truncated = bool(terminations.get(agent)), bool(truncations.get(agent))
            over = terminated or truncated
            if not over and agent not in left:
                raise BrokenEnvironmentError(
                    f"{self._name}: agent '{agent}' is gone from agents, but neither terminated nor truncated"
                )
            if agent in seen:
                observation = seen[agent]
            elif terminated:
                observation = self._seen[agent]  # not learned from, but a row needs one
            else:
                raise BrokenEnvironmentError(f"{self._name}: step() gave no observation for agent '{agent}'")
            time_step = TimeStep(
                agent, observation, float(rewards.get(agent, 0.0)), infos.get(agent, {}), terminated, truncated
            )
            if over:
                ending.append(_copied(time_step))
            else:
                deciding.append(time_step)
        ended = {time_step.agent for time_step in ending}
        known = {*self._live}
        for agent in left:
            if agent not in known:
                with _blaming(self._name, "step"):
                    deciding.append(TimeStep(agent, seen[agent], 0.0, infos.get(agent, {}), False, False))
        self._seen = seen
        self._live = [agent for agent in left if agent not in ended]
        self.over = not self._live
        return ending + deciding


class TurnInstance(Instance):
    """An environment in which one agent acts after the other (AEC)."""

    by_turns = True

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode, in which the first agent decides."""
        with _blaming(self._name, "reset"):
            self.env.reset(**_arguments(seed, options))
            self.first_infos = dict(getattr(self.env, "infos", {}))
            return self._up_to_next_turn()

    def step(self, actions: Mapping[str, Any]) -> list[TimeStep]:
        """Advance by one action; returns the endings, then the agent that decides next."""
        (action,) = actions.values()
        with _blaming(self._name, "step"):
            self.env.step(action)
            return self._up_to_next_turn()

    def waiting(self) -> Mapping[str, float]:
        """The reward that `last()` would return for each agent, where the environment keeps it as PettingZoo's do.

        The attribute is private, but PettingZoo's wrappers pass it on as well.
        """
        with _blaming(self._name, "step"):
            received = getattr(self.env, "_cumulative_rewards", None)
            if not isinstance(received, Mapping):
                return {}
            return {agent: float(received[agent]) for agent in self.env.agents if agent in received}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode of the agent whose turn it is, and of those who wait for theirs."""
        ended, received = super().truncate(deciding), self.waiting()
        known = {time_step.agent for time_step in ended}
        with _blaming(self._name, "observe"):
            for agent in self.env.agents:
                if agent not in known:
                    reward, info = received.get(agent, 0.0), dict(getattr(self.env, "infos", {})).get(agent, {})
                    seen = TimeStep(agent, self.env.observe(agent), reward, info, False, True)
                    ended.append(_copied(seen))
        return ended

    def _up_to_next_turn(self) -> list[TimeStep]:
        """Step dead agents with None, as PettingZoo demands, until a live agent is selected."""
        time_steps: list[TimeStep] = []
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            time_step = TimeStep(agent, observation, float(reward), info, bool(terminated), bool(truncated))
            if not time_step.ended:
                time_steps.append(time_step)
                break
            if any(other.agent == agent for other in time_steps):
                raise BrokenEnvironmentError(
                    f"{self._name}: agent '{agent}' was stepped with None at its end, and is still selected"
                )
            time_steps.append(_copied(time_step))
            self.env.step(None)
        self.over = not self.env.agents
        return time_steps


class LimitedInstance(Instance):
    """An environment whose episodes are truncated once an agent has decided so many times.

    Args:
        instance: the environment.
        steps: how many times.
    """

    def __init__(self, instance: Instance, steps: int) -> None:
        self._instance = instance
        self._steps = steps
        self._decisions: dict[str, int] = {}
        self.env, self.by_turns = instance.env, instance.by_turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)  # `over`, `first_infos`

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode."""
        self._decisions = {}
        return self._instance.reset(seed, options)

    def step(self, actions: Mapping[str, Any]) -> list[TimeStep]:
        """Advance, and end the episode if somebody who would decide next has done so as many times as is allowed."""
        for agent in actions:
            self._decisions[agent] = self._decisions.get(agent, 0) + 1
        time_steps = self._instance.step(actions)
        deciding = [each for each in time_steps if not each.ended]
        if not any(self._decisions.get(each.agent, 0) >= self._steps for each in deciding):
            return time_steps
        return [*(each for each in time_steps if each.ended), *self._instance.truncate(deciding)]

    def waiting(self) -> Mapping[str, float]:
        """See `Instance`."""
        return self._instance.waiting()


def _arguments(seed: int, options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"seed": seed, "options": dict(options)} if options else {"seed": seed}


def _copied(time_step: TimeStep) -> TimeStep:
    """A time step with copies of its observation and info, as the environment advances before its row is made."""
    return time_step._replace(observation=copy.deepcopy(time_step.observation), info=dict(time_step.info or {}))


@contextmanager
def _blaming(name: str, call: str) -> Iterator[None]:
    try:
        yield
    except BrokenEnvironmentError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{name}: its {call}() raised {describe_error(error)}") from error
