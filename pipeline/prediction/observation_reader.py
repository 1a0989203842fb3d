"""Validates the observations, masks and memories that Python code passes to a policy, and converts them to columns.

The shape shows whether a value is one observation or a batch. Axis letters: n observations in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.errors import suggest
from headrace.pipeline.common.errors import PredictError
from headrace.pipeline.prediction.policy_spaces import OwnTerms
from headrace.queues.messages import Array, Floats
from headrace.stages.environments.spaces.masks import MASK, MaskError, MaskReader
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    Leaf,
    OwnSpace,
    SequenceSpace,
    leaves,
)
from headrace.stages.errors import StageError


class ObservationReader:
    """Reads observations in the environment's own space.

    Args:
        terms: the policy's spaces.
    """

    def __init__(self, terms: OwnTerms) -> None:
        self._space = terms.observation_space
        self._extract = [part.extract for part in terms.parts]
        self._alone = self._space if isinstance(self._space, BoxSpace | ChoiceSpace) else None
        self._floats = [part.spec.dtype in ("float32", "float64") for part in terms.parts]

    def read(self, value: Any) -> tuple[tuple[Array, ...], bool]:
        """Return the columns [n, …] for one observation or a batch, and True if it is one observation (n = 1).

        Raises:
            PredictError: if the value does not fit the space; the message gives the location and what was expected.
        """
        if self._alone is not None:
            batch, single = _batch_of(self._alone, value, "")
        else:
            batch, single = self._composed(value)

        def who(row: int | None) -> str:
            return "obs" if single or row is None else f"obs, row {row}"

        try:
            with np.errstate(over="ignore"):  # values that are too large become infinite
                columns = tuple([extract(batch, who) for extract in self._extract])
        except StageError as error:
            raise PredictError(str(error)) from error
        for column, floats in zip(columns, self._floats, strict=True):
            if floats and not np.isfinite(column).all():
                self._name_infinite(columns)
        return columns, single

    def _composed(self, value: Any) -> tuple[Any, bool]:
        found = [(keys, leaf, _at(self._space, value, keys)) for keys, leaf in leaves(self._space)]
        single: bool | None = None
        first, of_first, batches = "", 0, {}
        for keys, leaf, value in sorted(found, key=lambda each: isinstance(each[1], SequenceSpace)):
            where = _path(keys)
            batch, alone = _batch_of(leaf, value, where, single)
            if single is None:
                single, first, of_first = alone, where, len(batch)
            if alone is not single:
                words = ("one observation", "a batch") if single else ("a batch", "one observation")
                raise PredictError(f"obs: {first or 'it'} is {words[0]}, but {where} is {words[1]}")
            if len(batch) != of_first:
                raise PredictError(f"obs: {first} is a batch of {of_first}, but {where} is a batch of {len(batch)}")
            batches[keys] = batch
        return _composed_of(self._space, batches, ()), bool(single)

    def _name_infinite(self, columns: Sequence[Array]) -> None:
        for (keys, leaf), column in zip(leaves(self._space), columns, strict=True):
            bad = ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
            if bad.any():
                row = f" in row {int(bad.argmax())} of {len(column)}" if len(column) > 1 else ""
                raise PredictError(
                    f"obs{_path(keys)}: has a NaN or infinity{row}, after conversion to {column.dtype}; expected "
                    f"finite values in {leaf}"
                )


def read_masks(masks: Any, reader: MaskReader, n: int, single: bool) -> NDArray[np.bool_]:
    """Return masks [n, choices], converted from any form that environments use.

    Raises:
        PredictError: if they do not fit the action space, or forbid all choices of a branch.
    """
    try:
        return reader.read([masks] if single else masks, n)
    except MaskError as error:
        where = "" if single or error.row is None else f"row {error.row} "
        raise PredictError(f"mask{error.at}: {where}{error.problem}") from error


def read_state(state: Any, size: int, n: int, single: bool) -> Floats:
    """Return the memories [n, size] in a state that `predict` returned.

    Raises:
        PredictError: if the state has the wrong shape or type.
    """
    try:
        memories: Floats = np.asarray(state, np.float32)
    except (TypeError, ValueError):
        memories = np.empty(0, np.float32)
    if memories.shape != ((size,) if single else (n, size)):
        wanted = f"[{size}], of one observation" if single else f"[{n}, {size}], a row for each observation"
        raise PredictError(
            f"state: expected the state that predict returned for the previous observation, {wanted}, or None where an "
            f"episode begins; got {_kind(state)}"
        )
    return memories.reshape(n, size)


def read_starts(episode_start: Any, n: int, single: bool) -> NDArray[np.bool_]:
    """Return [n] flags that are True where an episode begins.

    Raises:
        PredictError: if `episode_start` has the wrong shape or type.
    """
    starts = np.asarray(episode_start)
    if starts.shape not in ((n,), *([()] if single else [])) or starts.dtype.kind not in "bui":
        raise PredictError(
            f"episode_start: expected true or false for each of {n} observations, got {_kind(episode_start)}"
        )
    return starts.reshape(n).astype(np.bool_)


def _batch_of(leaf: Leaf, value: Any, where: str, single: bool | None = None) -> tuple[Any, bool]:
    """Return a leaf's value as a batch, and True if it was a single value."""
    if isinstance(leaf, SequenceSpace):
        return _sequences(leaf, value, where, single)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # ragged, or a tensor that requires grad
        raise _unfit(leaf, value, where) from None
    shape = leaf.shape
    if (
        array.dtype.kind not in "biuf"
        or array.shape[array.ndim - len(shape) :] != shape
        or (array.ndim - len(shape) not in (0, 1))
    ):
        raise _unfit(leaf, value, where)
    alone = array.ndim == len(shape)
    _check_numbers(leaf, array, where)
    if array.dtype.kind == "f" and not (isinstance(leaf, BoxSpace) and leaf.dtype.kind == "f"):
        array = array.astype(np.int64)
    return (array[None] if alone else array), alone


def _check_numbers(leaf: Leaf, array: Array, where: str) -> None:
    """Check that the values for an integer leaf are integers."""
    assert isinstance(leaf, BoxSpace | ChoiceSpace)
    if isinstance(leaf, BoxSpace) and (leaf.dtype.kind == "f" or array.dtype == leaf.dtype):
        return
    if array.dtype.kind == "f" and (np.trunc(array) != array).any():
        scaled = leaf.dtype == np.uint8 and array.size and array.min() >= 0 and array.max() <= 1
        hint = "; pass images as unscaled bytes, 0 to 255" if scaled else ""
        raise PredictError(f"obs{where}: expected integers in {leaf}, got {_kind(array)}{hint}")


def _sequences(leaf: SequenceSpace, value: Any, where: str, single: bool | None) -> tuple[list[Any], bool]:
    """Return the sequences as a list, and True if `value` is one sequence. By default, an entity's shape decides."""
    keys, inner = next(leaves(leaf.element))
    try:
        if single is None:
            single = _is_one(leaf, value, keys, len(inner.shape))
        batch = [value] if single else [*value]
        for sequence in batch:
            for below, part in leaves(leaf.element):
                if leaf.stack:
                    array = np.asarray(_reach(sequence, below))
                else:
                    array = np.array([_reach(entity, below) for entity in sequence])
                    array = array if len(array) else array.reshape(0, *part.shape)
                kinds = "biu" if isinstance(part, ChoiceSpace) and len(array) else "biuf"
                if array.shape[1:] != part.shape or array.dtype.kind not in kinds:
                    raise _unfit(leaf, value, where)
                _check_numbers(part, array, where)
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, PredictError):
            raise
        raise _unfit(leaf, value, where) from None
    return batch, single


def _is_one(leaf: SequenceSpace, value: Any, keys: tuple[Any, ...], rank: int) -> bool:
    """Return True if a value is one sequence rather than a batch, judging by the rank of an entity's first part."""
    if leaf.stack:
        return not (isinstance(value, tuple | list) and not keys) and np.ndim(_reach(value, keys)) == rank + 1
    if not len(value):
        return True
    try:
        return np.ndim(_reach(value[0], keys)) == rank
    except (LookupError, TypeError, ValueError):
        return False


def _reach(value: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _at(space: OwnSpace, value: Any, keys: tuple[Any, ...]) -> Any:
    """Return the value under these keys; each Dict and Tuple on the path must have exactly the keys of its space."""
    for depth, key in enumerate(keys):
        assert isinstance(space, ComposedSpace)
        where = _path(keys[:depth])
        if space.kind == "Dict":
            _check_keys(space, value, where)
        elif not isinstance(value, tuple | list) or len(value) != len(space.parts):
            raise _unfit(space, value, where)
        value, space = value[key], space.parts[key]
    return value


def _check_keys(space: ComposedSpace, value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _unfit(space, value, where)
    names = [str(key) for key in space.parts]
    for key in value:
        if key not in space.parts and key != MASK:
            raise PredictError(f"obs{where}: the space has no {key!r}{suggest(str(key), names)}; expected {space}")
    for key in space.parts:
        if key not in value:
            raise PredictError(f"obs{where}: {key!r} is missing; expected {space}")


def _composed_of(space: OwnSpace, found: Mapping[tuple[Any, ...], Any], keys: tuple[Any, ...]) -> Any:
    if isinstance(space, ComposedSpace):
        return {key: _composed_of(part, found, (*keys, key)) for key, part in space.parts.items()}
    return found[keys]


_ATARI = (160, 3)
"""The last two axes (width, channels) of an Atari screen; its height is 210 or 250 pixels."""
_STACKED = (
    "; this is a single frame, but Atari policies observe stacked grey frames. With gymnasium.wrappers, make the "
    "environment as FrameStackObservation(AtariPreprocessing(gymnasium.make(…, frameskip=1, "
    "repeat_action_probability=0.0)), 4, padding_type='zero') (docs/predict.md)"
)


def _is_one_frame(space: OwnSpace, shape: tuple[int, ...]) -> bool:
    """Return True if the space is for stacked byte frames, but the shape is one Atari screen or frame."""
    if not isinstance(space, BoxSpace) or len(space.shape) != 3 or space.dtype != np.uint8 or space.shape[2] <= 4:
        return False
    return shape[-2:] in (_ATARI, space.shape[1:])


def _unfit(space: OwnSpace, value: Any, where: str) -> PredictError:
    hint = ""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        hint = "; env.reset() returns (observation, info): pass only the observation"
    elif hasattr(value, "detach"):
        hint = "; for a tensor, pass obs.detach().cpu().numpy()"
    elif _is_one_frame(space, tuple(getattr(value, "shape", ()))):
        hint = _STACKED
    batch = "" if isinstance(space, ComposedSpace) else ", or a batch of observations"
    return PredictError(f"obs{where}: expected an observation in {space}{batch}, got {_kind(value)}{hint}")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)} ({dtype})"
    if isinstance(value, Mapping):
        return f"a dict with the keys {[*value]}"
    if isinstance(value, tuple | list):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError, RuntimeError):
            return f"a {type(value).__name__} of {len(value)} of different shapes"
        return f"a {type(value).__name__} of shape {array.shape} ({array.dtype})"
    return f"{type(value).__name__} {value!r:.40}"


def _path(keys: tuple[Any, ...]) -> str:
    return "".join(f"[{key!r}]" for key in keys)
