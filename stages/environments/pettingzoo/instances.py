"""Detects an object's PettingZoo API, wraps it as an `Instance`, and limits an instance's episodes.

In a parallel environment all agents decide simultaneously; in a turn-based one (AEC, agent-environment cycle) one agent
decides at a time, and receives all its rewards since its last turn. Only PettingZoo's methods matter, not its classes,
so any object with these methods works.

An `Instance` is the common interface: `reset` and `step` return time steps, first those of agents whose episodes have
ended, then those of agents that must act now.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace.stages.environments.checks import (
    described,
    flag_problem,
    info_problem,
    number_problem,
    raise_broken,
)
from headrace.stages.errors import BrokenEnvironmentError, number, type_of

Agent = Hashable
"""An agent's id, of any type; `str(agent)` is its name in patterns and messages."""
_FLAGS = (bool, np.bool_)
log = logging.getLogger(__name__)


class TimeStep(NamedTuple):
    """The values that an environment returns for one agent, when the agent's episode ends or the agent must decide."""

    agent: Agent
    observation: Any
    reward: float
    """Reward since the agent's previous time step."""
    info: Mapping[str, Any]
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        """True if the agent's episode is over."""
        return self.terminated or self.truncated


class Instance:
    """An environment that the group steps, through either of PettingZoo's APIs.

    Args:
        env: the environment.
        name: the environment's name, used in messages.
        said: kinds of warnings already logged. All instances of an environment share this set.
    """

    by_turns = False
    """True if agents act one after the other."""
    apart: bool | None = None
    """Default teams if `environment.behaviors` is empty: True to make each agent a separate team, False to put all in
    one team, None to use the rule in `RoleAssignment`."""

    def __init__(self, env: Any, name: str, said: set[str] | None = None) -> None:
        self.env = env
        self.over = True
        """True if no agent is left."""
        self.first_infos: Mapping[Agent, Mapping[str, Any]] = {}
        """Each agent's info from the last reset."""
        self._name = name
        self._said: set[str] = set() if said is None else said
        self._last: dict[Agent, TimeStep] = {}
        """Per agent whose episode continues: the time step of its last decision."""

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode. If there are no options, the environment's `reset` is called without `options`."""
        raise NotImplementedError

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance with the actions of all agents that decide; return the new time steps."""
        raise NotImplementedError

    def waiting(self) -> Mapping[Agent, float]:
        """Return waiting agents' preliminary rewards since their last time steps, if the environment has them."""
        return {}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode instead of letting these agents decide; return the endings of all remaining agents."""
        self.over = True
        for time_step in deciding:
            self._last.pop(time_step.agent, None)
        return [copied(time_step._replace(truncated=True)) for time_step in deciding]

    def _flags(self, agent: Agent, terminated: Any, truncated: Any, call: str = "step()") -> tuple[bool, bool]:
        """Check an agent's flags, and convert them to bool."""
        if type(terminated) not in _FLAGS or type(truncated) not in _FLAGS:
            problem = flag_problem(terminated, "terminated") or flag_problem(truncated, "truncated")
            if problem:
                raise BrokenEnvironmentError(f"{self._name}: agent '{agent}': {problem.replace('step()', call)}")
        return bool(terminated), bool(truncated)

    def _warn(self, kind: str, text: str, *values: Any) -> None:
        """Log a warning, unless one of the same kind has been logged."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s: %s", self._name, text % values)


def arguments(seed: int | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments for a reset, with options only if there are any."""
    return {"seed": seed, "options": dict(options)} if options else {"seed": seed}


def copied(time_step: TimeStep) -> TimeStep:
    """Return a time step with copies of its observation and info: the environment advances before the row is made."""
    return time_step._replace(observation=copy.deepcopy(time_step.observation), info=dict(time_step.info or {}))


class TurnInstance(Instance):
    """An environment in which agents act one after the other (AEC)."""

    by_turns = True

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode; return the time step of the agent that decides first."""
        self._last = {}
        try:
            self.env.reset(**arguments(seed, options))
            self.first_infos = {agent: info or {} for agent, info in self._kept("infos").items()}
            return self._up_to_next_turn()
        except Exception as error:
            raise_broken(error, self._name, "reset")

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance by one action.

        Return the time steps of agents whose episodes ended, then of the agent to act next.
        """
        (action,) = actions.values()
        try:
            self.env.step(action)
            return self._up_to_next_turn()
        except Exception as error:
            raise_broken(error, self._name, "step")

    def waiting(self) -> Mapping[Agent, float]:
        """Return the reward that `last()` would return for each agent, if the environment stores these rewards.

        The attribute `_cumulative_rewards` is private, but PettingZoo's wrappers pass it on.
        """
        received = getattr(self.env, "_cumulative_rewards", None)
        if not isinstance(received, Mapping):
            return {}
        return {agent: number(received[agent]) for agent in self.env.agents if agent in received}

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episode for the agent whose turn it is, and for the agents waiting for their turns."""
        ended, received = super().truncate(deciding), self.waiting()
        deciding_agents = {time_step.agent for time_step in ended}
        for agent in self.env.agents:
            if agent not in deciding_agents:
                try:
                    observation = self.env.observe(agent)
                except Exception as error:
                    raise_broken(error, self._name, "observe")
                reward, info = received.get(agent, 0.0), self._kept("infos").get(agent, {})
                ended.append(copied(TimeStep(agent, observation, reward, info, False, True)))
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
        terminated, truncated = self._flags(agent, terminated, truncated, "last()")
        plain = isinstance(reward, float | int) and type(info) is dict
        if not plain and (problem := number_problem(reward) or info_problem(info or {}, "last()")):
            raise BrokenEnvironmentError(f"{self._name}: agent '{agent}': {problem.replace('step()', 'last()')}")
        if observation is None and terminated and agent in self._last:
            observation = self._last[agent].observation  # training ignores this observation, but a row needs one
        return TimeStep(agent, observation, number(reward), info or {}, terminated, truncated)

    def _kept(self, name: str) -> dict[Agent, Any]:
        """Return the environment's attribute that maps agents to values; an empty dict if it does not exist."""
        return dict(getattr(self.env, name, {}))

    def _left_behind(self) -> list[TimeStep]:
        """Return endings for agents that left without a final turn, to give their last decisions a result."""
        ended = []
        for agent, last in self._last.items():
            flags = (self._kept(which).get(agent, False) for which in ("terminations", "truncations"))
            terminated, truncated = self._flags(agent, *flags)
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


_PROBLEMS: Mapping[str, Callable[[Any], str | None]] = {
    "observations": lambda value: None,  # checked against the space when rows are made
    "rewards": number_problem,  # non-finite values are reported when rows are made
    "terminations": lambda flag: flag_problem(flag, "terminated"),
    "truncations": lambda flag: flag_problem(flag, "truncated"),
    "infos": lambda info: info_problem(info, "step()"),
}
"""Per part of a call's result: the function that checks one agent's value."""
_PARTS = {"reset": ("observations", "infos"), "step": (*_PROBLEMS,)}
_NUMBERS = {2: "two", 5: "five"}
_SURPRISES = (AttributeError, LookupError, TypeError, ValueError)
"""Errors from using a value of the wrong type."""
_LONGEST_PAUSE = 10_000
"""Number of consecutive steps without a decision after which the environment counts as broken."""
_MOST_LIVES = 20
"""Number of consecutive one-step episodes at which an agent that never leaves `agents` causes an error."""


class ParallelInstance(Instance):
    """An environment in which all agents act simultaneously; agents may die, revive, join and pause.

    An agent pauses while its episode continues but the agent is not in `agents`, or has no observation. During the
    pause, the agent gets no action, and its rewards add up until it decides again. If an agent whose episode has ended
    stays in `agents` or returns to it, the agent begins a new episode.
    """

    def __init__(self, env: Any, name: str, said: set[str] | None = None) -> None:
        super().__init__(env, name, said)
        self._owed: dict[Agent, float] = {}
        """Per agent whose episode continues: the sum of its rewards since its last time step."""
        self._lives: dict[Agent, tuple[int, int]] = {}
        """Per agent that stayed in `agents` after its episode ended: the step in which that happened last, and how many
        of its episodes in a row have ended after one step."""
        self._steps = 0
        self._tried = False

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode, in which all agents with an observation decide."""
        try:
            result = self.env.reset(**arguments(seed, options))
            left = self._agents()
        except Exception as error:
            raise_broken(error, self._name, "reset")
        if not self._tried or not _is_filled(result, "reset"):
            self._check(result, "reset")
        self._owed, self._last = {}, {}
        seen, self.first_infos = result
        try:
            return self._until_somebody_decides([*self._deciding(left, seen, self.first_infos)], left)
        except _SURPRISES as error:
            self._check(result, "reset")
            raise_broken(error, self._name, "reset")

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance. Return the time steps of the agents whose episodes ended, then of those that act next."""
        time_steps, left = self._advance(actions)
        return self._until_somebody_decides(time_steps, left)

    def truncate(self, deciding: Sequence[TimeStep]) -> list[TimeStep]:
        """End the episodes of the agents that would decide next, and of those that are paused."""
        ended = super().truncate(deciding)
        pausing = [
            time_step._replace(reward=self._owed[time_step.agent], truncated=True) for time_step in self._last.values()
        ]
        return ended + [copied(time_step) for time_step in pausing]

    def _until_somebody_decides(self, time_steps: list[TimeStep], left: Sequence[Agent]) -> list[TimeStep]:
        steps = 0
        while left and (not time_steps or time_steps[-1].ended):
            if (steps := steps + 1) > _LONGEST_PAUSE:
                raise BrokenEnvironmentError(
                    f"{self._name}: none of agents ({', '.join(map(str, left))}) has had an observation for "
                    f"{_LONGEST_PAUSE} steps; expected an observation of every agent that can act"
                )
            more, left = self._advance({})
            time_steps = [*time_steps, *more]
        self.over = not left
        return time_steps

    def _advance(self, actions: Mapping[Agent, Any]) -> tuple[list[TimeStep], list[Agent]]:
        self._steps += 1
        try:
            result = self.env.step(actions)
            left = self._agents()
        except Exception as error:
            raise_broken(error, self._name, "step")
        if not self._tried or not _is_filled(result, "step"):
            self._check(result, "step")
            self._tried = True
        try:
            ending = self._ended(result, actions, left)
            return [*ending, *self._deciding(left, result[0], result[4])], left
        except _SURPRISES as error:
            self._check(result, "step")
            raise_broken(error, self._name, "step")

    def _check(self, result: Any, call: str) -> None:
        """Check the entire result of a call.

        Raises:
            BrokenEnvironmentError: if the result is invalid; the message names the part and the agent.
        """
        parts = _PARTS[call]
        if not _is_filled(result, call):
            raise BrokenEnvironmentError(
                f"{self._name}: its {call}() returned {described(result)}; expected {_NUMBERS[len(parts)]} dicts "
                f"keyed by agent: {', '.join(parts)}"
            )
        for part, values in zip(parts, result, strict=True):
            if not isinstance(values, Mapping):
                raise BrokenEnvironmentError(
                    f"{self._name}: its {call}() returned {described(values)} as {part}; expected a dict with a value "
                    "for each agent"
                )
            for agent, value in values.items():
                if problem := _PROBLEMS[part](value):
                    problem = problem.replace("step()", f"{call}()")
                    raise BrokenEnvironmentError(f"{self._name}: agent '{agent}': {problem}")

    def _agents(self) -> list[Agent]:
        agents = self.env.agents
        if not isinstance(agents, Iterable):
            raise BrokenEnvironmentError(f"{self._name}: its agents is {type_of(agents)}; expected a list")
        return [*agents]

    def _ended(
        self, result: Sequence[Mapping[Agent, Any]], actions: Mapping[Agent, Any], left: Sequence[Agent]
    ) -> list[TimeStep]:
        seen, rewards, terminations, truncations, infos = result
        ending, remaining = list[TimeStep](), {*left}
        if len(rewards) > len(self._owed):
            self._note_rewards(rewards)
        for agent, owed in [*self._owed.items()]:
            reward = rewards.get(agent, 0.0)
            self._owed[agent] = owed + (reward if type(reward) is float else number(reward))
            flags = terminations.get(agent, False), truncations.get(agent, False)
            terminated, truncated = self._flags(agent, *flags)
            if not (terminated or truncated):
                if agent in remaining:
                    continue
                self._note_absence(agent, agent in actions, bool(left))
                if left:
                    continue
                truncated = True
            elif agent in remaining:
                self._note_new_life(agent)
            observation, last = seen.get(agent), self._last.pop(agent, None)
            if observation is None and last is not None:  # without `last`, it has never decided, so it gets no row
                if not terminated and agent in actions:
                    raise BrokenEnvironmentError(f"{self._name}: step() returned no observation for agent '{agent}'")
                observation = last.observation  # ignored by training, or the last one before a pause
            reward, info = self._owed.pop(agent), infos.get(agent) or {}
            ending.append(copied(TimeStep(agent, observation, reward, info, terminated, truncated)))
        return ending

    def _deciding(
        self, left: Sequence[Agent], seen: Mapping[Agent, Any], infos: Mapping[Agent, Any]
    ) -> Iterator[TimeStep]:
        owed = self._owed
        for agent in left:
            reward = owed.get(agent, 0.0)
            owed[agent] = 0.0
            if (observation := seen.get(agent)) is None:
                owed[agent] = reward
                if "unseen" not in self._said:  # listing the others costs more than the step
                    observed = ", ".join(str(observing) for observing in seen if seen[observing] is not None) or "none"
                    self._warn(
                        "unseen",
                        "agent '%s' is in agents, but has no observation (found: %s), so it pauses: it receives no "
                        "action until it has an observation",
                        *(agent, observed),
                    )
                continue
            # Takes half as long as TimeStep(…), and runs once per agent and step.
            time_step = tuple.__new__(TimeStep, (agent, observation, reward, infos.get(agent) or {}, False, False))
            self._last[agent] = time_step
            yield time_step

    def _note_absence(self, agent: Agent, decided: bool, goes_on: bool) -> None:
        if not goes_on and decided:
            raise BrokenEnvironmentError(
                f"{self._name}: agent '{agent}' is no longer in agents, but was neither terminated nor truncated"
            )
        how = "so it pauses: it receives no action until it returns" if goes_on else "so its end counts as truncated"
        self._warn(
            f"gone {goes_on}",
            f"agent '%s' is no longer in agents, but was neither terminated nor truncated, {how}",
            agent,
        )

    def _note_new_life(self, agent: Agent) -> None:
        """Distinguish a revived agent from a finished one that the environment failed to remove from `agents`."""
        step, lives = self._lives.get(agent, (0, 0))
        self._lives[agent] = self._steps, lives + 1 if step == self._steps - 1 else 1
        if self._lives[agent][1] >= _MOST_LIVES:
            raise BrokenEnvironmentError(
                f"{self._name}: agent '{agent}' has ended in {_MOST_LIVES} steps in a row, but is still in agents; "
                "remove finished agents from agents, which must be empty when the game is over"
            )
        self._warn(
            "lives",
            "agent '%s' ended and is still in agents, so it begins another episode; the game is over once agents is "
            "empty",
            agent,
        )

    def _note_rewards(self, rewards: Mapping[Agent, Any]) -> None:
        for agent in rewards.keys() - self._owed.keys():
            if rewards[agent]:
                self._warn(
                    "reward",
                    "step() returned a reward of %s for agent '%s', whose episode is over or has not begun; the "
                    "reward is ignored",
                    *(rewards[agent], agent),
                )


def _is_filled(result: Any, call: str) -> bool:
    return isinstance(result, tuple | list) and len(result) == len(_PARTS[call])


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

    def reset(self, seed: int | None, options: Mapping[str, Any] | None = None) -> list[TimeStep]:
        """Begin an episode."""
        self._decisions = {}
        return self._instance.reset(seed, options)

    def step(self, actions: Mapping[Agent, Any]) -> list[TimeStep]:
        """Advance, and end the episode if an agent that would decide next has reached the limit."""
        for agent in actions:
            self._decisions[agent] = self._decisions.get(agent, 0) + 1
        time_steps = self._instance.step(actions)
        deciding = [time_step for time_step in time_steps if not time_step.ended]
        if not any(self._decisions.get(time_step.agent, 0) >= self._steps for time_step in deciding):
            return time_steps
        return [*(time_step for time_step in time_steps if time_step.ended), *self._instance.truncate(deciding)]

    def waiting(self) -> Mapping[Agent, float]:
        """See `Instance`."""
        return self._instance.waiting()
