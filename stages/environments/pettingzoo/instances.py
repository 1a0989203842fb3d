"""Detects an object's PettingZoo API, wraps it as an `Instance`, and limits an instance's episodes.

In a parallel environment all agents decide simultaneously; in a turn-based one (AEC, agent-environment cycle) one agent
decides at a time, and receives all its rewards since its last turn. Only PettingZoo's methods matter, not its classes,
so any object with these methods works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from headrace.stages.environments.pettingzoo.by_turns import TurnInstance
from headrace.stages.environments.pettingzoo.instance import Agent, Instance, TimeStep
from headrace.stages.environments.pettingzoo.parallel import ParallelInstance


def api_of(env: Any) -> Literal["parallel", "aec"] | None:
    """Return the PettingZoo API that an object has; None if it has neither."""
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step", "observation_space", "action_space")):
        return None
    by_turns = all(callable(getattr(env, name, None)) for name in ("last", "observe"))
    return "aec" if by_turns else "parallel"


def instance_of(env: Any, name: str, said: set[str] | None = None) -> Instance:
    """Wrap an environment according to its API.

    Args:
        env: a ParallelEnv, an AECEnv, or an object with the same methods.
        name: the environment's name, used in messages.
        said: kinds of warnings already logged. All instances of an environment share this set.
    """
    return TurnInstance(env, name, said) if api_of(env) == "aec" else ParallelInstance(env, name, said)


class LimitedInstance(Instance):
    """An environment whose episodes are truncated once an agent has decided `steps` times.

    Args:
        instance: the environment.
        steps: maximum number of decisions per agent and episode.
    """

    def __init__(self, instance: Instance, steps: int) -> None:
        self._instance = instance
        self._steps = steps
        self._decisions: dict[Agent, int] = {}
        self.env, self.by_turns, self.apart = instance.env, instance.by_turns, instance.apart

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)  # `over`, `first_infos`

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode."""
        self._decisions = {}
        return self._instance.reset(seed, options)

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance, and end the episode if an agent that would decide next has reached the limit."""
        for agent in actions:
            self._decisions[agent] = self._decisions.get(agent, 0) + 1
        time_steps = self._instance.step(actions)
        deciding = [each for each in time_steps if not each.ended]
        if not any(self._decisions.get(each.agent, 0) >= self._steps for each in deciding):
            return time_steps
        return [*(each for each in time_steps if each.ended), *self._instance.truncate(deciding)]

    def waiting(self) -> Mapping[Agent, float]:
        """See `Instance`."""
        return self._instance.waiting()
