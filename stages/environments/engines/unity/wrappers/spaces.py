"""Converts a behaviour's observation and action specs to Gymnasium's spaces, and actions back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from headrace.stages.environments.engines.unity.errors import UnityActionException
from headrace.stages.environments.engines.unity.specs import ActionTuple

Mask = Any
"""A mask in the form that `space.sample` takes: int8 [choices], 1 = allowed. With several branches, the mask is a tuple
of these arrays. With both choices and continuous actions, it is `(None, mask)`."""


class ActionMap:
    """Converts a behaviour's actions from Gymnasium's form to Unity's, and masks from Unity's form to Gymnasium's.

    Args:
        spec: the behaviour's `ActionSpec`.
        name: the behaviour's name, used in messages.
        flatten: True to make one branch with a choice for each combination, if all actions are discrete.
        seed: the seed for the space's samples.

    Attributes:
        space: a Box for continuous actions, Discrete for one branch of choices, MultiDiscrete for several. With both
            kinds of actions, a Tuple of a Box and a Discrete or MultiDiscrete.

    Raises:
        UnityActionException: if there are no actions.
    """

    def __init__(self, spec: Any, name: str, flatten: bool = False, seed: int | None = None) -> None:
        self._branches = tuple(map(int, spec.discrete_branches))
        self._width = int(spec.continuous_size)
        self._flat = flatten and len(self._branches) > 1 and not self._width
        if not self._width and not self._branches:
            raise UnityActionException(f"{name}: it has no actions")
        choices: Space[Any] = spaces.MultiDiscrete(list(self._branches))
        if self._flat or len(self._branches) == 1:
            choices = spaces.Discrete(math.prod(self._branches))
        numbers = spaces.Box(-1.0, 1.0, (self._width,), np.float32)
        parts: list[Space[Any]] = [numbers] * bool(self._width) + [choices] * bool(self._branches)
        self.space = parts[0] if len(parts) == 1 else spaces.Tuple(parts)
        if seed is not None:
            self.space.seed(seed)

    @property
    def mask_space(self) -> Space[Any] | None:
        """The space of masks; None if there are continuous actions, which have no masks."""
        if self._width:
            return None
        if isinstance(self.space, spaces.Discrete):
            return spaces.MultiBinary(int(self.space.n))
        return spaces.Tuple([spaces.MultiBinary(count) for count in self._branches])

    def read(self, chosen: Sequence[Any], who: Sequence[str]) -> ActionTuple:
        """Convert actions of several agents.

        Args:
            chosen: a value of the space for each agent.
            who: the agents' names, used in messages.

        Raises:
            UnityActionException: if an action is not in the space.
        """
        try:
            return self._converted(chosen)
        except (TypeError, ValueError):
            agent, wrong = next(pair for pair in zip(who, chosen, strict=True) if not self._fits(pair[1]))
            raise UnityActionException(f"{agent}: got action {wrong!r}; expected one of {self.space}") from None

    def _fits(self, action: Any) -> bool:
        try:
            self._converted([action])
        except (TypeError, ValueError):
            return False
        return True

    def _converted(self, chosen: Sequence[Any]) -> ActionTuple:
        numbers, choices = chosen, chosen
        if self._width and self._branches:
            numbers, choices = zip(*((numbers, choices) for numbers, choices in chosen), strict=True)
        continuous = self._numbers(numbers) if self._width else None
        return ActionTuple(continuous, self._choices(choices) if self._branches else None)

    def _numbers(self, values: Sequence[Any]) -> NDArray[np.float32]:
        numbers = _rows(values)
        if numbers.shape[1] != self._width:
            raise ValueError
        return numbers.astype(np.float32)

    def _choices(self, values: Sequence[Any]) -> NDArray[np.int32]:
        rows = _rows(values)
        choices = rows.astype(np.int64)
        sizes = (math.prod(self._branches),) if self._flat else self._branches
        if choices.shape[1] != len(sizes) or (choices != rows).any() or ((choices < 0) | (choices >= sizes)).any():
            raise ValueError
        if self._flat:
            choices = np.stack(np.unravel_index(choices[:, 0], self._branches), 1)
        return choices.astype(np.int32)

    def mask(self, forbidden: Sequence[NDArray[np.bool_]] | None) -> Mask | None:
        """Return the mask for `space.sample`, from one agent's mask in a DecisionStep; None without discrete actions.

        Args:
            forbidden: [choices] of each branch, true = forbidden; None if all are allowed.
        """
        if not self._branches:
            return None
        if forbidden is None:
            forbidden = [np.zeros(count, np.bool_) for count in self._branches]
        branches = [np.logical_not(each).astype(np.int8) for each in forbidden]
        allowed: Mask = tuple(branches) if len(branches) > 1 else branches[0]
        if self._flat:
            return reduce(np.multiply.outer, branches).reshape(-1)
        return (None, allowed) if self._width else allowed


def _rows(values: Sequence[Any]) -> NDArray[Any]:
    """Stack several agents' actions, one per row. Raises ValueError if a value is not a finite number."""
    rows = np.stack([np.asarray(value).reshape(-1) for value in values])
    if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
        raise ValueError
    return rows


def unlimited(shape: Sequence[int]) -> spaces.Box:
    """Return an unbounded Box of this shape."""
    return spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
