"""Describes invalid values that environments return, with the same wording for all groups, in runs and in `--validate`.

A `…_problem` function describes what is wrong with one instance's or agent's value; it returns None for a valid value.
Valid values cost nothing extra: groups convert entire columns with `stack`, `rewards_column` and `flags_column`, and
these search for the invalid value only after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from headrace.stages.errors import (
    BrokenEnvironmentError,
    NotFiniteError,
    StageError,
    Who,
    describe_fault,
    number,
    type_of,
    unfit_number,
)

_PLAIN = Box, Discrete, MultiBinary, MultiDiscrete
"""Space types whose values are arrays of a fixed shape."""
_LARGE = np.float32(3e38)
"""A number just below the largest float32. As a float32, because a float16 array compared with a float overflows."""
_FLOAT32 = np.dtype(np.float32)  # faster to pass than the type


def raise_broken(error: Exception, who: str, call: str) -> NoReturn:
    """Reraise an error that an environment's method raised. Unless the error is Headrace's own, name the method."""
    if isinstance(error, StageError):
        raise error
    raise BrokenEnvironmentError(f"{who}: its {call}() raised {describe_fault(error)}") from error


def described(value: Any) -> str:
    """Describe the type of a call's result, for example `4 values` or `a list`."""
    return f"{len(value)} values" if isinstance(value, tuple) else type_of(value)


def space_problem(space: Any, which: str) -> str | None:
    """Return why a value is not a Gymnasium space; `which` is the name of the attribute that holds the value."""
    if isinstance(space, Space):
        return None
    if space is None:
        return (
            f"it has no {which}; set self.{which} in __init__ to a space from gymnasium.spaces, such as Box or Discrete"
        )
    return f"its {which} is {short(space)} of {type(space).__module__}; expected a space from gymnasium.spaces"


def observation_problem(space: Any, got: Any, call: str, at: str = "") -> str | None:
    """Return why a call's observation does not fit its Gymnasium space; `at` is the path within a composed space."""
    parts: Any = getattr(space, "spaces", None)
    where = f"observation{f' {at!r}' if at else ''} from {call}"
    if isinstance(parts, tuple | list) and isinstance(got, tuple | list) and len(parts) == len(got):
        return _first(observation_problem(part, got[i], call, f"{at}.{i}".lstrip(".")) for i, part in enumerate(parts))
    if hasattr(parts, "items") and isinstance(got, Mapping):
        if missing := [key for key in parts if key not in got]:
            present = ", ".join(map(repr, got)) or "none"
            return f"{where} lacks these keys of its space: {', '.join(map(repr, missing))}; it has: {present}"
        return _first(
            observation_problem(part, got[key], call, f"{at}.{key}".lstrip(".")) for key, part in parts.items()
        )
    if type(space).__name__ == "Box":
        return _box_problem(space, got, where)
    if not space.contains(got):
        return f"{where} is {short(got)}, which is not in its space {space}; fix the observation or the space"
    return None


def _box_problem(space: Any, got: Any, where: str) -> str | None:
    expected = f"expected an array of shape {space.shape}, as in its space"
    try:
        values = np.asarray(got)
        numbers = values.dtype.kind in "biuf"
    except (TypeError, ValueError):
        return f"{where} is {short(got)}; {expected}"
    if not numbers:
        return f"{where} is {short(got)}; {expected}"
    if values.shape != space.shape:
        return (
            f"{where} has shape {values.shape}, but its space has {space.shape}; return that shape, or change the space"
        )
    if not np.can_cast(values.dtype, space.dtype, "same_kind"):
        return (
            f"{where} is of dtype {values.dtype}, but its space has {space.dtype}; return that dtype, or change the "
            "space"
        )
    return None


def number_problem(reward: Any) -> str | None:
    """Return why a value is not a number and therefore not a valid reward."""
    try:
        if np.asarray(reward).dtype.kind in "biufO":
            number(np.asarray(reward))
            return None
    except (TypeError, ValueError):
        pass
    parts = (
        "; for a vector of rewards, add a wrapper that computes a weighted sum"
        if isinstance(reward, np.ndarray | list | tuple)
        else ""
    )
    return f"step() returned reward {short(reward)}; expected a number, such as a float{parts}"


def reward_problem(reward: Any) -> str | None:
    """Return why a value is not a valid reward."""
    problem = number_problem(reward)
    if problem or abs(number(reward)) < _LARGE:
        return problem
    return f"step() returned reward {unfit_number(reward)}"


def flag_problem(flag: Any, which: str) -> str | None:
    """Return why a value is not a flag, or None if it is true, false, 0 or 1."""
    array = np.asarray(flag)
    if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
        return None
    return f"step() returned {short(flag)} as `{which}`; expected True or False (wrap it in bool())"


def info_problem(info: Any, call: str) -> str | None:
    """Return why a value is not a valid info dict."""
    if isinstance(info, Mapping):
        return None
    return f"{call} returned {described(info)} as info; expected a dict, {{}} if it is empty"


def stack(space: Any, seen: Sequence[Any], call: str, who: Who) -> Any:
    """Batch observations as `gymnasium.vector` does, in new arrays.

    Args:
        space: the space of one observation.
        seen: the observations, one for each row.
        call: the call that returned them, used in messages.
        who: returns the name of a row's environment.

    Raises:
        BrokenEnvironmentError: if an observation does not fit the space.
    """
    try:
        return _stacked(space, seen)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        for row, one in enumerate(seen):
            if problem := observation_problem(space, one, call):
                raise BrokenEnvironmentError(f"{who(row)}: {problem}") from error
        raise BrokenEnvironmentError(
            f"{who(None)}: observations from {call} are not in their space {space}: {type(error).__name__}: {error}"
        ) from error


def _stacked(space: Any, seen: Sequence[Any]) -> Any:
    if isinstance(space, _PLAIN):  # if all observations fit, NumPy takes a third of Gymnasium's time
        batch = np.array(seen)
        fits = batch.dtype == space.dtype or batch.dtype.kind == space.dtype.kind == "f"
        if fits and batch.shape[1:] == space.shape:
            return batch
    elif isinstance(space, Dict):
        return {key: _stacked(part, [one[key] for one in seen]) for key, part in space.spaces.items()}
    elif isinstance(space, Tuple):
        return tuple([_stacked(part, [one[i] for one in seen]) for i, part in enumerate(space.spaces)])
    return concatenate(space, cast("Any", seen), cast("Any", create_empty_array(space, len(seen))))


def addresses_of(observation: Any) -> list[int]:
    """Return the memory addresses of an observation's arrays, to find arrays that several instances share."""
    if isinstance(observation, np.ndarray):
        return [observation.ctypes.data] if observation.size else []
    parts = observation.values() if isinstance(observation, Mapping) else observation
    return (
        [address for part in parts for address in addresses_of(part)] if isinstance(observation, dict | tuple) else []
    )


def rewards_column(raw: Any, count: int, who: Who) -> NDArray[np.float32]:
    """Convert the rewards of n instances to a new array [n].

    Raises:
        BrokenEnvironmentError: if a reward is not a number.
        StageError: if all rewards are vectors. The environment is designed that way, so a restart does not help.
        NotFiniteError: if a reward is NaN or infinite, or too large for float32.
    """
    array = raw if isinstance(raw, np.ndarray) else _column(raw, "biuf")
    if array.dtype.kind == "f" and array.shape == (count,) and np.count_nonzero(np.abs(array) < _LARGE) == count:
        return array.astype(_FLOAT32)  # NaN fails the comparison; the code below names the instance
    if array.dtype.kind not in "biuf":
        array = _each(array, count, number_problem, who, number)
    with np.errstate(over="ignore"):  # reported below
        rewards: NDArray[np.float32] = array.astype(_FLOAT32)
    if rewards.shape != (count,):
        if rewards.shape[:1] == (count,) and (problem := number_problem(array[0])):
            raise StageError(f"{who(0)}: {problem}")
        raise BrokenEnvironmentError(
            f"{who(None)}: step() returned rewards of shape {array.shape}; expected {(count,)}"
        )
    if not (finite := np.isfinite(rewards)).all():
        row = int(finite.argmin())
        raise NotFiniteError(f"{who(row)}: step() returned reward {unfit_number(array[row])}")
    return rewards


def flags_column(raw: Any, which: str, count: int, who: Who) -> NDArray[np.bool_]:
    """Convert one flag of n instances, `terminated` or `truncated`, to a new array [n].

    Raises:
        BrokenEnvironmentError: if a value is neither true nor false, nor 0 or 1.
    """
    array = raw if isinstance(raw, np.ndarray) else _column(raw, "b")
    if array.dtype.kind != "b":
        array = _each(array, count, lambda flag: flag_problem(flag, which), who, bool)
    if array.shape != (count,):
        raise BrokenEnvironmentError(
            f"{who(None)}: step() returned {which} of shape {array.shape}; expected {(count,)}"
        )
    return array.copy()


def _column(raw: Any, kinds: str) -> NDArray[Any]:
    """Return n instances' values (scalars or arrays [1]) as an array [n], of objects if no kind in `kinds` fits."""
    with suppress(ValueError):  # arrays of different shapes
        array = np.array(raw)
        if array.dtype.kind in kinds and array.ndim <= 2:
            return array[:, 0] if array.shape[1:] == (1,) else array
    array = np.empty(len(raw), object)
    array[:] = raw
    return array


def _each(
    array: NDArray[Any], count: int, problem_of: Callable[[Any], str | None], who: Who, kind: Callable[[Any], Any]
) -> NDArray[Any]:
    """Convert values of n instances one by one, because their array has no suitable dtype."""
    if len(array.shape) == 0 or len(array) != count:
        return array.astype(object)  # the caller reports its shape
    for row, value in enumerate(array):
        if problem := problem_of(value):
            raise BrokenEnvironmentError(f"{who(row)}: {problem}")
    return np.array([kind(np.asarray(value).item()) for value in array])


def _first(problems: Any) -> str | None:
    return next((problem for problem in problems if problem), None)


def short(value: Any) -> str:
    """Format a value on one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return f"{text[:77]}..." if len(text) > 80 else text
