"""Observation spaces as columns: the spec of each observation, and its extraction from a batch.

A space becomes a tuple of parts, each a spec and an extractor. Boxes are vectors or images, discrete spaces one-hot
vectors, sequences sets; Dict and Tuple are split, also nested ones. `environment.observations` overrides this. Actions
are in `actions`.

Axis letters: k observations of any number of instances, e entities of a set, f numbers of an entity, H height, W width,
C channels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ObservationSettings
from headrace.config.errors import suggest
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import ObservationSpec
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

log = logging.getLogger(__name__)

Extractor = Callable[[Any], Array]
"""From k observations, batched as `gymnasium.vector` does, to a *new* array [k, *shape] as the spec says."""

ONLY_OBSERVATION = "observation"
"""Name of the observation of a space that is neither Dict nor Tuple."""
GOAL = "desired_goal"
"""A vector by this name holds the goal, as in the goal environments of Gymnasium-Robotics."""
MAX_ENTITIES = 32
_SMALLEST_PICTURE = 16
"""Pixels: a matrix of bytes with a shorter side is more likely a board than a picture without colours."""


@dataclass(frozen=True, slots=True)
class ObservationPart:
    """One observation of an agent: its spec, and its extraction from the environment's batch."""

    spec: ObservationSpec
    extract: Extractor


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A space that is no Dict and no Tuple, its keys, and its settings."""

    space: Leaf
    keys: tuple[Any, ...]
    owner: str
    settings: ObservationSettings

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys)) or ONLY_OBSERVATION

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    def mistake(self, key: str, problem: str) -> StageError:
        return StageError(f"{self.owner}: environment.observations.{self.name}{key}: {problem}")

    def part(self, shape: tuple[int, ...], dtype: Any, extract: Extractor, **more: bool) -> ObservationPart:
        spec = ObservationSpec(self.name, shape, np.dtype(dtype).name, goal=self.settings.goal, **more)
        return ObservationPart(spec, _below(self.keys, extract))


def observation_parts(
    space: OwnSpace, owner: str, settings: Mapping[str, ObservationSettings] | None = None, exact: bool = False
) -> tuple[ObservationPart, ...]:
    """Map an observation space to columns, in the space's own order.

    Args:
        space: the space of a single instance.
        owner: the environment's name, for messages.
        settings: `environment.observations`: kinds of observations, by name.
        exact: keep vectors in float64 whose numbers float32 may round, for those who normalise them first.

    Raises:
        StageError: if an observation can't be of its kind, or the settings name an unknown one.
    """
    settings = settings or {}
    found = [
        _Leaf(leaf, keys, owner, settings.get(".".join(map(str, keys)) or ONLY_OBSERVATION) or ObservationSettings())
        for keys, leaf in leaves(space)
    ]
    _check_names(settings, [leaf.name for leaf in found], owner)
    parts = [_part(leaf, exact) for leaf in found]
    if not parts:
        raise StageError(f"{owner}: its observation space {space} is empty; an agent has to observe something")
    if GOAL not in settings:
        parts = [_goal(part) if leaf.keys == (GOAL,) else part for leaf, part in zip(found, parts, strict=True)]
    return tuple(parts)


def take_rows(space: OwnSpace, batch: Any, rows: NDArray[np.intp]) -> Any:
    """Return some observations of a batch, batched."""
    if isinstance(space, ComposedSpace):
        taken = {key: take_rows(part, batch[key], rows) for key, part in space.parts.items()}
        return taken if space.kind == "Dict" else tuple(taken.values())
    return batch[rows] if isinstance(batch, np.ndarray) else tuple(batch[row] for row in rows)


def _below(keys: tuple[Any, ...], extract: Extractor) -> Extractor:
    """Extract from the value under these keys of the batch."""
    if not keys:
        return extract

    def reach(batch: Any) -> Array:
        for key in keys:
            batch = batch[key]
        return extract(batch)

    return reach


def _check_names(settings: Mapping[str, ObservationSettings], names: list[str], owner: str) -> None:
    for name in settings:
        if name not in names:
            hint = suggest(name, names) or f"; there are: {', '.join(names)}"
            raise StageError(f"{owner}: environment.observations: it has no observation '{name}'{hint}")


def _goal(part: ObservationPart) -> ObservationPart:
    return replace(part, spec=replace(part.spec, goal=True)) if part.spec.kind == "vector" else part


def _part(leaf: _Leaf, exact: bool) -> ObservationPart:
    kind = _kind(leaf)
    if kind != "image" and leaf.settings.channels is not None:
        raise leaf.mistake(".channels", f"only an image has channels; {leaf.space} is used as a {kind}")
    if leaf.settings.max_entities is not None and not isinstance(leaf.space, SequenceSpace):
        raise leaf.mistake(".max_entities", f"only a Sequence space has no fixed size, not {leaf.space}")
    if kind == "image":
        return _image_part(leaf)
    if kind == "vector":
        return _vector_part(leaf, exact)
    return _sequence_part(leaf) if isinstance(leaf.space, SequenceSpace) else _rows_part(leaf)


def _kind(leaf: _Leaf) -> str:
    """Return the kind of an observation; check that its space allows it."""
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
        f"{leaf.owner}: its {where} of a {leaf.space.kind} space, which can't be learned from; expected Box, "
        "Discrete, MultiDiscrete, MultiBinary, a Sequence of these, or Dict and Tuple of them. A wrapper can drop or "
        f"change it, such as environment.wrappers: [{wrapper}]"
    )


def _is_picture(space: BoxSpace) -> bool:
    """Return True if a box holds an image by default: three axes, or bytes that look like pixels."""
    if len(space.shape) == 3:
        return True
    pixels = space.dtype == np.uint8 and bool(np.all(space.low == 0) and np.all(space.high == 255))
    if len(space.shape) == 2:
        return pixels and min(space.shape) >= _SMALLEST_PICTURE
    return pixels and len(space.shape) == 4


def _image_part(leaf: _Leaf) -> ObservationPart:
    """Keep an image in its own dtype; [H, W] gets one channel, stacked frames become channels."""
    dtype, shape = _number(leaf.space), leaf.shape
    if len(shape) == 2:
        if leaf.settings.channels is not None:
            raise leaf.mistake(".channels", f"{leaf.space} has no axis for channels")
        return leaf.part((*shape, 1), dtype, _cast(dtype, (*shape, 1)), channels_last=True)
    last = _channels_last(leaf)
    if len(shape) == 3:
        return leaf.part(shape, dtype, _cast(dtype, shape), channels_last=last)
    if not last:  # [frames, C, H, W]
        merged = (shape[0] * shape[1], *shape[2:])
        return leaf.part(merged, dtype, _cast(dtype, merged), channels_last=False)
    frames, height, width, channels = shape
    merged = (height, width, frames * channels)

    def extract(batch: Any) -> Array:
        values = np.moveaxis(np.asarray(batch), 1, -2)
        return values.astype(dtype, order="C").reshape(-1, *merged)

    return leaf.part(merged, dtype, extract, channels_last=True)


def _channels_last(leaf: _Leaf) -> bool:
    """Return True if channels come last: the smallest dimension, the first of equal ones, as in Stable-Baselines3."""
    if leaf.settings.channels is not None:
        return leaf.settings.channels == "last"
    smallest = int(np.argmin(leaf.shape[-3:]))
    if smallest == 1:
        log.warning(
            "%s: observation '%s' is an image of shape %s, with the middle dimension the smallest; its channels are "
            "assumed to come last. If not, set environment.observations.%s to {channels: first}, or to vector if it is "
            "no image",
            *(leaf.owner, leaf.name, leaf.shape, leaf.name),
        )
    return smallest != 0


def _vector_part(leaf: _Leaf, exact: bool) -> ObservationPart:
    size, dtype, extract = _flattened(leaf.space)
    if exact and isinstance(leaf.space, BoxSpace) and np.result_type(leaf.space.dtype, np.float32) != np.float32:
        return leaf.part((size,), np.float64, _cast(np.dtype(np.float64), (size,)))
    return leaf.part((size,), dtype, extract)


def _flattened(space: Leaf) -> tuple[int, np.dtype[Any], Extractor]:
    """Return size, dtype and extractor of a vector, from a box or from a space that becomes one-hot."""
    assert isinstance(space, BoxSpace | ChoiceSpace)
    if isinstance(space, ChoiceSpace) and space.kind != "MultiBinary":
        return _one_hot(space.sizes.ravel(), space.start.ravel())
    size = math.prod(space.shape)
    dtype = _number(space) if isinstance(space, BoxSpace) else np.dtype(np.float32)
    return size, dtype, _cast(dtype, (size,))


def _number(space: Leaf) -> np.dtype[Any]:
    """Return the dtype of a box's column: float32 for floats, their own for others."""
    assert isinstance(space, BoxSpace)
    return np.dtype(np.float32) if np.issubdtype(space.dtype, np.floating) else space.dtype


def _cast(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Extractor:
    def extract(batch: Any) -> Array:
        values: Array = np.asarray(batch)
        # The copy that astype makes also keeps us apart from an environment that writes over its arrays.
        return values.astype(dtype).reshape(len(values), *shape)

    return extract


def _one_hot(sizes: NDArray[Any], start: NDArray[Any]) -> tuple[int, np.dtype[Any], Extractor]:
    width = int(sizes.sum())
    first = np.cumsum(sizes) - sizes - start

    def extract(batch: Any) -> Array:
        values = np.asarray(batch)
        hot = values.reshape(len(values), len(sizes)) + first
        columns = np.zeros((len(values), width), np.float32)
        columns[np.arange(len(values))[:, None], hot] = 1.0
        return columns

    return width, np.dtype(np.float32), extract


def _rows_part(leaf: _Leaf) -> ObservationPart:
    """Make a set of a matrix; its rows are the entities."""
    dtype = _number(leaf.space)
    return leaf.part(leaf.shape, dtype, _cast(dtype, leaf.shape))


def _sequence_part(leaf: _Leaf) -> ObservationPart:
    """Make a set [e, f] of a sequence, padded to its maximal size: entities of zeros count as none."""
    assert isinstance(leaf.space, SequenceSpace)
    most, stack = leaf.settings.max_entities or MAX_ENTITIES, leaf.space.stack
    flattened = []
    for keys, inner in leaves(leaf.space.element):
        if not isinstance(inner, BoxSpace | ChoiceSpace):
            raise _unusable(replace(leaf, space=inner, keys=(*leaf.keys, "…", *keys)))
        flattened.append((keys, *_flattened(inner)))
    width = sum(size for _, size, _, _ in flattened)
    columns = [(_below(keys, np.asarray), flat) for keys, _, _, flat in flattened]
    first = columns[0][0]

    def extract(batch: Any) -> Array:
        counts = np.array([len(first(some) if stack else some) for some in batch], np.intp)
        if counts.size and counts.max() > most:
            raise StageError(
                f"{leaf.owner}: observation '{leaf.name}' has {counts.max()} entities, more than the {most} that there "
                f"is room for; raise environment.observations.{leaf.name}.max_entities"
            )
        padded = np.zeros((len(counts), most, width), np.float32)
        if counts.any():
            join = np.concatenate if stack else np.stack
            entities = [some for some, count in zip(batch, counts, strict=True) if count]
            every = entities if stack else [entity for some in entities for entity in some]
            values = [flat(join([take(one) for one in every])) for take, flat in columns]
            padded[np.arange(most) < counts[:, None]] = np.concatenate(values, axis=1, dtype=np.float32)
        return padded

    return leaf.part((most, width), np.float32, extract)
