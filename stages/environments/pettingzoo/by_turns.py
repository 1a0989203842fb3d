"""A PettingZoo environment in which agents act one after the other (AEC, agent-environment cycle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.stages.environments.checks import described, flag_problem, info_problem, number_problem, raise_broken
from headrace.stages.environments.pettingzoo.instance import (
    Agent,
    Instance,
    TimeStep,
    arguments,
    blaming,
    copied,
    number,
)
from headrace.stages.errors import BrokenEnvironmentError


class TurnInstance(Instance):
    """An environment in which agents act one after the other (AEC)."""

    by_turns = True

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode; return the time step of the agent that decides first."""
        self._last = {}
        with blaming(self._name, "reset"):
            self.env.reset(**arguments(seed, options))
            self.first_infos = {agent: info or {} for agent, info in self._kept("infos").items()}
            return self._up_to_next_turn()

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance by one action.

        Return the time steps of agents whose episodes ended, then of the agent to act next.
        """
        (action,) = actions.values()
        with blaming(self._name, "step"):
            self.env.step(action)
            return self._up_to_next_turn()

    def waiting(self) -> Mapping[Agent, float]:
        """Return the reward that `last()` would return for each agent, if the environment stores these rewards.

        The attribute `_cumulative_rewards` is private, but PettingZoo's wrappers pass it on.
        """
        with blaming(self._name, "step"):
            received = getattr(self.env, "_cumulative_rewards", None)
            if not isinstance(received, Mapping):
                return {}
            return {agent: number(received[agent]) for agent in self.env.agents if agent in received}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode for the agent whose turn it is, and for the agents waiting for their turns."""
        ended, received = super().truncate(deciding), self.waiting()
        known = {time_step.agent for time_step in ended}
        with blaming(self._name, "observe"):
            for agent in self.env.agents:
                if agent not in known:
                    reward, info = received.get(agent, 0.0), self._kept("infos").get(agent, {})
                    seen = TimeStep(agent, self.env.observe(agent), reward, info, False, True)
                    ended.append(copied(seen))
                    self._last.pop(agent, None)
        return ended + self._left_behind()

    def _up_to_next_turn(self) -> list[TimeStep]:
        """Step dead agents with None, as PettingZoo requires, until a live agent is selected."""
        time_steps: list[TimeStep] = []
        while self.env.agents:
            time_step = self._turn()
            if not time_step.ended:
                self._last[time_step.agent] = time_step
                self.over = False
                return [*time_steps, time_step]
            if any(other.agent == time_step.agent for other in time_steps):
                raise BrokenEnvironmentError(
                    f"{self._name}: agent '{time_step.agent}' was stepped with None at its end, but is still selected"
                )
            time_steps.append(copied(time_step))
            self._last.pop(time_step.agent, None)
            self.env.step(None)
        self.over = True
        return time_steps + self._left_behind()

    def _turn(self) -> TimeStep:
        try:
            agent, result = self.env.agent_selection, self.env.last()
        except Exception as error:
            raise_broken(error, self._name, "last")
        parts = ("observation", "reward", "terminated", "truncated", "info")
        if not isinstance(result, tuple) or len(result) != len(parts):
            raise BrokenEnvironmentError(
                f"{self._name}: its last() returned {described(result)}; expected five values: {', '.join(parts)}"
            )
        observation, reward, terminated, truncated, info = result
        plain = isinstance(terminated, bool) and isinstance(truncated, bool) and isinstance(reward, float | int)
        if not plain or type(info) is not dict:
            problem = flag_problem(terminated, parts[2]) or flag_problem(truncated, parts[3]) or number_problem(reward)
            if problem := problem or info_problem(info or {}, "last()"):
                raise BrokenEnvironmentError(f"{self._name}: agent '{agent}': {problem.replace('step()', 'last()')}")
        if observation is None and terminated and agent in self._last:
            observation = self._last[agent].observation  # training ignores this observation, but a row needs one
        return TimeStep(agent, observation, number(reward), info or {}, bool(terminated), bool(truncated))

    def _kept(self, name: str) -> dict[Agent, Any]:
        """Return the environment's attribute that maps agents to values; an empty dict if it does not exist."""
        return dict(getattr(self.env, name, {}))

    def _left_behind(self) -> list[TimeStep]:
        """Return endings for agents that left without a final turn, to give their last decisions a result."""
        ended = []
        for agent, last in self._last.items():
            terminated = bool(self._kept("terminations").get(agent))
            truncated = bool(self._kept("truncations").get(agent))
            if not (terminated or truncated):
                self._warn(
                    "gone",
                    "agent '%s' is no longer in agents, but was neither terminated nor truncated, so its end counts as "
                    "truncated",
                    agent,
                )
            reward = number(self._kept("_cumulative_rewards").get(agent, 0.0))
            end = last._replace(reward=reward, terminated=terminated, truncated=truncated or not terminated)
            ended.append(copied(end))
        self._last = {}
        return ended
