"""A common interface to PettingZoo's two APIs: the parts that `parallel` and `by_turns` share.

`reset` and `step` return time steps: first those of agents whose episodes have ended, then those of agents that must
act now.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from headrace.stages.environments.checks import raise_broken

Agent = Hashable
"""An agent's id, of any type; `str(agent)` is its name in patterns and messages."""
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


@contextmanager
def blaming(name: str, call: str) -> Iterator[None]:
    """Turn an environment's error into a `BrokenEnvironmentError` that names the environment and the call."""
    try:
        yield
    except Exception as error:
        raise_broken(error, name, call)


def number(value: Any) -> float:
    """Convert a reward, possibly a one-element array, to a number."""
    return float(value if type(value) is not np.ndarray else value.item())
