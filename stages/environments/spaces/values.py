"""Checks that observations are in their space. A wrong index causes an error, a number beyond a Box's bounds a warning.

The check covers the entire batch in one pass, and looks for the culprit only after a failure.

Axis letters: k observations.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from headrace.queues.messages import Array
from headrace.stages.action_units import AS_GOOD_AS_INFINITE
from headrace.stages.environments.spaces.own_space import BoxSpace, ChoiceSpace
from headrace.stages.errors import BrokenEnvironmentError, Who

log = logging.getLogger(__name__)

_SMALL = 4096
"""Maximum size of bounds that are cached in the batch's shape. They are cached because comparing with a single row
takes twice as long."""


def row_of_batch(row: int | None) -> str:
    """Return the name of a row about which nothing else is known."""
    return "the batch" if row is None else f"row {row}"


class ChoiceCheck:
    """Checks that integers are in their space.

    Args:
        space: Discrete, MultiDiscrete or MultiBinary.
        name: the observation's name.
    """

    def __init__(self, space: ChoiceSpace, name: str) -> None:
        self._space, self._name = space, name
        self._start, self._sizes = space.start.ravel(), space.sizes.ravel().astype(np.uint64)

    def __call__(self, values: Array, who: Who) -> Array:
        """Return the numbers [k, *shape] as choices [k, size] counted from 0.

        Raises:
            BrokenEnvironmentError: if a number is outside the space.
            TypeError: if the values are not integers.
        """
        if values.dtype.kind not in "iub":
            raise TypeError(f"expected whole numbers, got {values.dtype}")
        chosen: Array = values.reshape(len(values), len(self._sizes)).astype(np.int64) - self._start
        outside = chosen.view(np.uint64) >= self._sizes  # negative numbers wrap to larger ones
        if np.count_nonzero(outside):
            row, index = np.argwhere(outside)[0].tolist()
            first = int(self._start[index])
            value = f"has {chosen[row, index] + first} at index {index}" if self._space.shape else f"is {values[row]}"
            raise BrokenEnvironmentError(
                f"{who(row)}: the observation '{self._name}' {value}, outside its space {self._space}; expected "
                f"{first} to {first + int(self._sizes[index]) - 1}"
            )
        return chosen


class BoundsCheck:
    """Warns once about numbers beyond the bounds of a Box, which stay unchanged.

    Args:
        space: the Box.
        name: the observation's name.
        dtype: the dtype of the observation's column.
    """

    def __init__(self, space: BoxSpace, name: str, dtype: np.dtype[Any]) -> None:
        self._space, self._name = space, name
        self._floats = dtype.kind == "f"
        with np.errstate(over="ignore"):
            self._low, self._high = space.low.astype(dtype), space.high.astype(dtype)
        self._done = self._cannot_fail()
        self._rows: tuple[int, Array, Array] = (0, self._low, self._high)

    def __call__(self, values: Array, column: Array, who: Who) -> None:
        """Check observations [k, *shape], given raw and in the dtype of their column.

        Raises:
            BrokenEnvironmentError: if the dtype can't hold an integer.
            TypeError: if integers were expected, but the values have a different type.
        """
        if not self._floats and values.dtype != column.dtype:
            self._check_cast(values, who)
        if self._done:
            return
        count = len(column)
        if count > self._rows[0]:
            self._rows = self._of_rows(count)
        _, low, high = self._rows
        if low.ndim == column.ndim:
            low, high = low[:count], high[:count]
        if np.count_nonzero(column < low) or np.count_nonzero(column > high):
            self._done = True
            log.warning(
                "%s, outside its space %s, and is not clipped: widen the bounds, or clip the observation in the "
                "environment",
                *(self._of_first(column, (column < low) | (column > high), who), self._space),
            )

    def _cannot_fail(self) -> bool:
        if self._space.dtype.kind == "f":
            return bool((self._low < -AS_GOOD_AS_INFINITE).all() and (self._high > AS_GOOD_AS_INFINITE).all())
        least, most = _limits(self._space.dtype)
        return bool((self._space.low == least).all() and (self._space.high == most).all())

    def _of_rows(self, count: int) -> tuple[int, Array, Array]:
        if count * self._low.size > _SMALL:
            return count, self._low, self._high
        shape = (count, *self._low.shape)
        return count, np.broadcast_to(self._low, shape).copy(), np.broadcast_to(self._high, shape).copy()

    def _check_cast(self, values: Array, who: Who) -> None:
        if values.dtype.kind not in "iub":
            raise TypeError(f"expected whole numbers of {self._space.dtype}, got {values.dtype}")
        least, most = _limits(self._space.dtype)
        outside = (values < least) | (values > most)
        if np.count_nonzero(outside):
            raise BrokenEnvironmentError(
                f"{self._of_first(values, outside, who)}, which {self._space.dtype} can't hold; expected values of its "
                f"space {self._space}"
            )

    def _of_first(self, values: Array, outside: Array, who: Who) -> str:
        row, *index = np.argwhere(outside)[0].tolist()
        at = f" at {index}" if index else ""
        return f"{who(row)}: the observation '{self._name}' has {values[(row, *index)]:g}{at}"


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
