"""Observation spaces as columns: the spec of each observation, and its extraction from a batch.

A space becomes a tuple of parts, each a spec and an extractor. Boxes become vectors or images, discrete spaces one-hot
vectors, and sequences sets. A Dict or Tuple is split, even a nested one. `environment.observations` overrides these
defaults. Actions are in `actions`.

Axis letters: k observations of any number of instances, e entities of a set, f numbers of an entity, H height, W width,
C channels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.config import ObservationSettings
from headrace.config.errors import suggest
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import ObservationSpec
from headrace.stages.action_units import AS_GOOD_AS_INFINITE
from headrace.stages.environments.protocol import DESIRED_GOAL
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    Leaf,
    OwnSpace,
    SequenceSpace,
    leaves,
)
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError, StageError, Who, unfit_number

log = logging.getLogger(__name__)

Masks = NDArray[np.bool_]
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
    """Refuses numbers that are not finite in float32, and warns once about numbers beyond the bounds of a Box.

    Numbers beyond the bounds stay unchanged.

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

    def __call__(self, values: Array, column: Array, who: Who, spared: Masks | None = None) -> None:
        """Check observations [k, *shape], given raw and in the dtype of their column.

        `spared` [k] marks rows whose numbers need not be finite.

        Raises:
            BrokenEnvironmentError: if the dtype can't hold an integer.
            NotFiniteError: if a number is NaN or infinite, or too large for float32.
            TypeError: if integers were expected, but the values have a different type.
        """
        if self._floats:
            with np.errstate(over="ignore", invalid="ignore"):
                total = column.sum(dtype=np.float32)  # without the temporary arrays of a comparison
            if not math.isfinite(total):
                self._check_finite(values, column, who, spared)
        elif values.dtype != column.dtype:
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

    def _check_finite(self, values: Array, column: Array, who: Who, spared: Masks | None) -> None:
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(column.astype(np.float32, copy=False))
        if spared is not None:
            bad[spared] = False
        if bad.any():
            row, *index = np.argwhere(bad)[0].tolist()
            at, value = f" at {index}" if index else "", unfit_number(values[(row, *index)])
            raise NotFiniteError(f"{who(row)}: the observation '{self._name}'{at} is {value}")

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


class Extractor(Protocol):
    """Converts k observations, batched as `gymnasium.vector` does, to a *new* array [k, *shape] that fits the spec."""

    def __call__(self, batch: Any, who: Who = ..., spared: Masks | None = ...) -> Array:
        """Convert a batch of observations.

        Args:
            batch: the observations.
            who: returns the name of a row's agent, for messages.
            spared: [k] true for rows whose numbers need not be finite: an episode's end by the task, after which
                nothing is learned (`ObservationPreprocessor`). None if all must be finite.

        Raises:
            BrokenEnvironmentError: if an integer is outside its space.
            NotFiniteError: if a number is NaN or infinite, or too large for float32.
        """


ONLY_OBSERVATION = "observation"
"""Name of the only observation of a space that is neither Dict nor Tuple."""
MAX_ENTITIES = 32
_SMALLEST_PICTURE = 16
"""Minimum side in pixels: a matrix of bytes with a shorter side is more likely a board than a greyscale image."""


@dataclass(frozen=True, slots=True)
class ObservationPart:
    """One of an agent's observations: its spec, and its extraction from the environment's batch."""

    spec: ObservationSpec
    extract: Extractor


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A space that is neither Dict nor Tuple, its keys, and its settings."""

    space: Leaf
    keys: tuple[Any, ...]
    owner: str
    settings: ObservationSettings

    @property
    def name(self) -> str:
        return name_of(self.keys)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    def mistake(self, key: str, problem: str) -> StageError:
        return StageError(f"{self.owner}: environment.observations.{self.name}{key}: {problem}")

    def part(self, shape: tuple[int, ...], dtype: Any, extract: Extractor, **more: bool) -> ObservationPart:
        spec = ObservationSpec(self.name, shape, np.dtype(dtype).name, goal=self.settings.goal, **more)
        return ObservationPart(spec, _below(self.keys, extract))


def name_of(keys: tuple[Any, ...]) -> str:
    """Return the name of the observation under these keys of its space, such as `arm.angles`."""
    return ".".join(map(str, keys)) or ONLY_OBSERVATION


def observation_parts(
    space: OwnSpace, owner: str, settings: Mapping[str, ObservationSettings] | None = None, exact: bool = False
) -> tuple[ObservationPart, ...]:
    """Map an observation space to columns, in the space's own order.

    Args:
        space: the space of a single instance.
        owner: the environment's name, used in messages.
        settings: kinds of observations, keyed by name (`environment.observations`); `check_names` checks the names.
        exact: keep float64 for vectors that float32 may round, so they can be normalised before rounding.

    Raises:
        StageError: if an observation can't be of its kind.
    """
    settings = settings or {}
    all_leaves = [
        _Leaf(leaf, keys, owner, settings.get(name_of(keys)) or ObservationSettings()) for keys, leaf in leaves(space)
    ]
    parts = [_part(leaf, exact) for leaf in all_leaves]
    if not parts:
        raise StageError(f"{owner}: its observation space {space} is empty; an agent needs observations")
    if DESIRED_GOAL not in settings:
        parts = [
            _goal(part) if leaf.keys == (DESIRED_GOAL,) else part for leaf, part in zip(all_leaves, parts, strict=True)
        ]
    return tuple(parts)


def take_rows(space: OwnSpace, batch: Any, rows: NDArray[np.intp]) -> Any:
    """Return the given rows of a batch of observations, as a batch."""
    if isinstance(space, ComposedSpace):
        taken = {key: take_rows(part, batch[key], rows) for key, part in space.parts.items()}
        return taken if space.kind == "Dict" else tuple(taken.values())
    return batch[rows] if isinstance(batch, np.ndarray) else tuple(batch[row] for row in rows)


def _below(keys: tuple[Any, ...], extract: Extractor) -> Extractor:
    """Return an extractor that reads the value under these keys of the batch."""
    return (lambda batch, who=row_of_batch, spared=None: extract(_under(keys, batch), who, spared)) if keys else extract


def _under(keys: tuple[Any, ...], value: Any) -> Any:
    for key in keys:
        value = value[key]
    return value


def check_names(settings: Mapping[str, ObservationSettings], parts: Iterable[ObservationPart], owner: str) -> None:
    """Check that each observation named in `environment.observations` exists.

    Args:
        settings: the section, keyed by the observations' names.
        parts: the observations of all agents.
        owner: the environment's name, used in messages.

    Raises:
        StageError: if an observation does not exist.
    """
    names = list(dict.fromkeys(part.spec.name for part in parts))
    for name in settings:
        if name not in names:
            hint = suggest(name, names) or f"; available: {', '.join(names)}"
            raise StageError(f"{owner}: environment.observations: it has no observation '{name}'{hint}")


def _goal(part: ObservationPart) -> ObservationPart:
    return replace(part, spec=replace(part.spec, goal=True)) if part.spec.kind == "vector" else part


def _part(leaf: _Leaf, exact: bool) -> ObservationPart:
    kind = _kind(leaf)
    if kind != "image" and leaf.settings.channels is not None:
        raise leaf.mistake(".channels", f"only an image has channels; {leaf.space} is used as a {kind}")
    if leaf.settings.max_entities is not None and not isinstance(leaf.space, SequenceSpace):
        raise leaf.mistake(".max_entities", f"only a Sequence space has a variable size, not {leaf.space}")
    if kind == "image":
        return _image_part(leaf)
    if kind == "vector":
        return _vector_part(leaf, exact)
    if isinstance(leaf.space, SequenceSpace):
        return _sequence_part(leaf)
    assert isinstance(leaf.space, BoxSpace)
    return leaf.part(leaf.shape, *_numbers(leaf.space, leaf.name, leaf.shape))  # a matrix's rows are a set's entities


def _kind(leaf: _Leaf) -> str:
    """Return the kind of an observation, after checking that its space allows this kind."""
    requested, rank = leaf.settings.kind, len(leaf.shape)
    if isinstance(leaf.space, SequenceSpace):
        possible, usual = ["set"], "set"
    elif isinstance(leaf.space, BoxSpace):
        kinds = OBSERVATION_KINDS.items()
        possible = [name for name, kind in kinds if kind.box_ranks is None or rank in kind.box_ranks]
        usual = "image" if _is_picture(leaf.space) else "vector"
    elif isinstance(leaf.space, ChoiceSpace):
        possible, usual = ["vector"], "vector"
    else:
        raise _unusable(leaf)
    if requested is not None and requested not in possible:
        raise leaf.mistake("", f"{leaf.space} can't be used as '{requested}'; expected {' or '.join(possible)}")
    return requested or usual


def _unusable(leaf: _Leaf) -> StageError:
    where = f"observation '{leaf.name}' is" if leaf.keys else "observations are"
    wrapper = (
        '{use: "gymnasium.wrappers:FilterObservation", with: {filter_keys: [what, to, keep]}}'
        if leaf.keys
        else '{use: "my_module:MyObservationWrapper"}'
    )
    return StageError(
        f"{leaf.owner}: its {where} of a {leaf.space.kind} space, which is not supported; expected Box, Discrete, "
        "MultiDiscrete, MultiBinary, a Sequence of these, or a Dict or Tuple of these. A wrapper can remove or "
        f"convert it, such as environment.wrappers: [{wrapper}]"
    )


def _is_picture(space: BoxSpace) -> bool:
    """Return True if a box is read as an image by default. It has three axes, or bytes that look like pixels."""
    if len(space.shape) == 3:
        return True
    if len(space.shape) == 2:
        return are_pixels(space) and min(space.shape) >= _SMALLEST_PICTURE
    return are_pixels(space) and len(space.shape) == 4


def are_pixels(space: BoxSpace) -> bool:
    """Return True if a box spans the full range of bytes."""
    return space.dtype == np.uint8 and bool(np.all(space.low == 0) and np.all(space.high == 255))


def _image_part(leaf: _Leaf) -> ObservationPart:
    """Return the observation part for an image, in its own dtype.

    A matrix [H, W] gets one channel, stacked frames get several.
    """
    assert isinstance(leaf.space, BoxSpace)
    shape, last = leaf.shape, True
    if len(shape) == 2:
        if leaf.settings.channels is not None:
            raise leaf.mistake(".channels", f"{leaf.space} has no axis for channels")
        return _image(leaf, (*shape, 1), last)
    last = (
        channels_last(shape, are_pixels(leaf.space))
        if leaf.settings.channels is None
        else leaf.settings.channels == "last"
    )
    if len(shape) == 3:
        return _image(leaf, shape, last)
    if not last:  # [frames, C, H, W]
        return _image(leaf, (shape[0] * shape[1], *shape[2:]), last)
    frames, height, width, channels = shape
    return _image(leaf, (height, width, frames * channels), last, lambda values: np.moveaxis(values, 1, -2))


def _image(
    leaf: _Leaf, shape: tuple[int, ...], last: bool, arranged: Callable[[Array], Array] | None = None
) -> ObservationPart:
    assert isinstance(leaf.space, BoxSpace)
    dtype, extract = _numbers(leaf.space, leaf.name, shape, arranged)
    return leaf.part(shape, dtype, extract, channels_last=last)


def channels_last(shape: tuple[int, ...], pixels: bool) -> bool:
    """Return True if channels come last.

    The channel axis is the one that differs from two equal axes, or else the smallest. A board may have more planes
    than squares in a row, so its channel axis is the outer one that differs most from the middle axis.
    """
    first, middle, end = shape[-3:]
    if (first == middle) != (middle == end):
        return first == middle
    before, after = (max(middle, outer) / max(1, min(middle, outer)) for outer in (first, end))
    if not pixels and before != after:
        return before < after
    return min(first, middle, end) != first


def _vector_part(leaf: _Leaf, exact: bool) -> ObservationPart:
    if exact and isinstance(leaf.space, BoxSpace) and np.result_type(leaf.space.dtype, np.float32) != np.float32:
        shape = (math.prod(leaf.shape),)
        return leaf.part(shape, *_numbers(leaf.space, leaf.name, shape, dtype=np.dtype(np.float64)))
    size, dtype, extract = _flattened(leaf.space, leaf.name)
    return leaf.part((size,), dtype, extract)


def _flattened(space: Leaf, name: str) -> tuple[int, np.dtype[Any], Extractor]:
    """Return the size, dtype and extractor of a vector, made from a box or from a space that becomes one-hot."""
    assert isinstance(space, BoxSpace | ChoiceSpace)
    if isinstance(space, ChoiceSpace):
        return _choices(space, name)
    size = math.prod(space.shape)
    return size, *_numbers(space, name, (size,))


def _numbers(
    space: BoxSpace,
    name: str,
    shape: tuple[int, ...],
    arranged: Callable[[Array], Array] | None = None,
    dtype: np.dtype[Any] | None = None,
) -> tuple[np.dtype[Any], Extractor]:
    """Return the dtype and extractor of a box's column.

    The dtype is `dtype` if given, otherwise float32 for floats and the box's own dtype for other numbers. `arranged`
    moves axes.
    """
    dtype = dtype or (np.dtype(np.float32) if space.dtype.kind == "f" else space.dtype)
    check, own_shape = BoundsCheck(space, name, dtype), space.shape

    def extract(batch: Any, who: Who = row_of_batch, spared: Masks | None = None) -> Array:
        values: Array = np.asarray(batch)
        # The copy from astype also protects against an environment that overwrites its arrays.
        with np.errstate(over="ignore"):  # refused by the check
            column = values.astype(dtype)
        if column.shape[1:] == own_shape:
            check(values, column, who, spared)
        if arranged is not None:
            column = np.ascontiguousarray(arranged(column))
        return column.reshape(len(values), *shape)

    return dtype, extract


def _choices(space: ChoiceSpace, name: str) -> tuple[int, np.dtype[Any], Extractor]:
    """Return the size, dtype and extractor of choices: flags become numbers, others one-hot vectors, side by side."""
    check, sizes = ChoiceCheck(space, name), space.sizes.ravel()
    flags = space.kind == "MultiBinary"
    width, first = len(sizes) if flags else int(sizes.sum()), np.cumsum(sizes) - sizes

    def extract(batch: Any, who: Who = row_of_batch, spared: Masks | None = None) -> Array:
        chosen = check(np.asarray(batch), who)
        if flags:
            return chosen.astype(np.float32)
        columns = np.zeros((len(chosen), width), np.float32)
        columns[np.arange(len(chosen))[:, None], chosen + first] = 1.0
        return columns

    return width, np.dtype(np.float32), extract


def _sequence_part(leaf: _Leaf) -> ObservationPart:
    """Return the observation part for a sequence: a set [e, f], padded with zeros to its maximum size."""
    assert isinstance(leaf.space, SequenceSpace)
    most, stack = leaf.settings.max_entities or MAX_ENTITIES, leaf.space.stack
    flattened = []
    for keys, inner in leaves(leaf.space.element):
        if not isinstance(inner, BoxSpace | ChoiceSpace):
            raise _unusable(replace(leaf, space=inner, keys=(*leaf.keys, "…", *keys)))
        flattened.append((keys, *_flattened(inner, name_of((leaf.name, *keys)))))
    width = sum(size for _, size, _, _ in flattened)
    columns = [(partial(_under, keys), flat) for keys, _, _, flat in flattened]
    first = columns[0][0]

    def extract(batch: Any, who: Who = row_of_batch, spared: Masks | None = None) -> Array:
        counts = np.array([len(first(some) if stack else some) for some in batch], np.intp)
        if counts.size and counts.max() > most:
            raise StageError(
                f"{who(int(counts.argmax()))}: the observation '{leaf.name}' has {counts.max()} entities, more than "
                f"the maximum of {most}; raise environment.observations.{leaf.name}.max_entities"
            )
        padded = np.zeros((len(counts), most, width), np.float32)
        if counts.any():
            join = np.concatenate if stack else np.stack
            entities = [some for some, count in zip(batch, counts, strict=True) if count]
            every = entities if stack else [entity for some in entities for entity in some]
            rows = np.repeat(np.arange(len(counts)), counts)

            def whose(entity: int | None) -> str:
                return who(None if entity is None else int(rows[entity]))

            of_entities = None if spared is None else spared[rows]
            values = [flat(join([take(one) for one in every]), whose, of_entities) for take, flat in columns]
            padded[np.arange(most) < counts[:, None]] = np.concatenate(values, axis=1, dtype=np.float32)
        return padded

    return leaf.part((most, width), np.float32, extract)
