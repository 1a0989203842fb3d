"""Gymnasium's observation spaces as columns: the spec of each observation, and its extraction from a batch.

A space becomes a tuple of parts, each a spec and an extractor. Boxes are vectors or images, discrete spaces one-hot
vectors, sequences sets; Dict and Tuple are split, also nested ones. `environment.observations` overrides this. Actions
are in `actions`.

Axis letters: k observations of any number of instances, e entities of a set, f numbers of an entity, H height, W width,
C channels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from config import ObservationSettings
from config.errors import suggest
from config.observation_kinds import OBSERVATION_KINDS
from queues.messages import Array
from queues.specs import ObservationSpec
from stages.errors import StageError

log = logging.getLogger(__name__)

Space = spaces.Space[Any]
Extractor = Callable[[Any], Array]
"""From k observations, batched as `gymnasium.vector` does, to a *new* array [k, *shape] as the spec says."""

ALONE = "observation"
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

    space: Space
    keys: tuple[Any, ...]
    owner: str
    settings: ObservationSettings

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys)) or ALONE

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape or ()

    def mistake(self, key: str, problem: str) -> StageError:
        return StageError(f"{self.owner}: environment.observations.{self.name}{key}: {problem}")

    def part(self, shape: tuple[int, ...], dtype: Any, extract: Extractor, **more: bool) -> ObservationPart:
        spec = ObservationSpec(self.name, shape, np.dtype(dtype).name, goal=self.settings.goal, **more)
        return ObservationPart(spec, _below(self.keys, extract))


def observation_parts(
    space: Space, owner: str, settings: Mapping[str, ObservationSettings] | None = None
) -> tuple[ObservationPart, ...]:
    """Map an observation space to columns, in the space's own order.

    Args:
        space: the space of a single instance.
        owner: the environment's name, for messages.
        settings: `environment.observations`: kinds of observations, by name.

    Raises:
        StageError: if an observation can't be of its kind, or the settings name an unknown one.
    """
    settings = settings or {}
    leaves = [
        _Leaf(leaf, keys, owner, settings.get(".".join(map(str, keys)) or ALONE) or ObservationSettings())
        for keys, leaf in _leaves(space)
    ]
    _check_names(settings, [leaf.name for leaf in leaves], owner)
    parts = [_part(leaf) for leaf in leaves]
    if not parts:
        raise StageError(f"{owner}: its observation space {space} is empty; an agent has to observe something")
    if GOAL not in settings:
        parts = [_goal(part) if leaf.keys == (GOAL,) else part for leaf, part in zip(leaves, parts, strict=True)]
    return tuple(parts)


def take_rows(space: Space, batch: Any, rows: NDArray[np.intp]) -> Any:
    """Return some observations of a batch, batched."""
    if isinstance(space, spaces.Dict):
        return {key: take_rows(inner, batch[key], rows) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(take_rows(inner, batch[i], rows) for i, inner in enumerate(space.spaces))
    return batch[rows] if isinstance(batch, np.ndarray) else tuple(batch[row] for row in rows)


def _leaves(space: Space, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Space]]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*keys, index))
    else:
        yield keys, space


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


def _part(leaf: _Leaf) -> ObservationPart:
    kind = _kind(leaf)
    if kind != "image" and leaf.settings.channels is not None:
        raise leaf.mistake(".channels", f"only an image has channels; {leaf.space} is used as a {kind}")
    if leaf.settings.max_entities is not None and not isinstance(leaf.space, spaces.Sequence):
        raise leaf.mistake(".max_entities", f"only a Sequence space has no fixed size, not {leaf.space}")
    if kind == "image":
        return _image_part(leaf)
    if kind == "vector":
        return _vector_part(leaf)
    return _sequence_part(leaf) if isinstance(leaf.space, spaces.Sequence) else _rows_part(leaf)


def _kind(leaf: _Leaf) -> str:
    """Return the kind of an observation; check that its space allows it."""
    asked, rank = leaf.settings.kind, len(leaf.shape)
    if isinstance(leaf.space, spaces.Sequence):
        possible, usual = ["set"], "set"
    elif isinstance(leaf.space, spaces.Box):
        kinds = OBSERVATION_KINDS.items()
        possible = [name for name, kind in kinds if kind.box_ranks is None or rank in kind.box_ranks]
        usual = "image" if _is_picture(leaf.space) else "vector"
    elif isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        possible, usual = ["vector"], "vector"
    else:
        raise _unusable(leaf)
    if asked is not None and asked not in possible:
        raise leaf.mistake("", f"{leaf.space} can't be used as '{asked}'; expected {' or '.join(possible)}")
    return asked or usual


def _unusable(leaf: _Leaf) -> StageError:
    where = f"observation '{leaf.name}' is" if leaf.keys else "observations are"
    wrapper = (
        '{use: "gymnasium.wrappers:FilterObservation", with: {filter_keys: [what, to, keep]}}'
        if leaf.keys
        else '{use: "my_module:MyObservationWrapper"}'
    )
    return StageError(
        f"{leaf.owner}: its {where} of a {type(leaf.space).__name__} space, which can't be learned from; expected Box, "
        "Discrete, MultiDiscrete, MultiBinary, a Sequence of these, or Dict and Tuple of them. A wrapper can drop or "
        f"change it, such as environment.wrappers: [{wrapper}]"
    )


def _is_picture(space: spaces.Box) -> bool:
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


def _vector_part(leaf: _Leaf) -> ObservationPart:
    size, dtype, extract = _flattened(leaf.space)
    return leaf.part((size,), dtype, extract)


def _flattened(space: Space) -> tuple[int, np.dtype[Any], Extractor]:
    """Return size, dtype and extractor of a vector, from a box or from a space that becomes one-hot."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.ravel(), np.ravel(space.start))
    size = math.prod(space.shape or ())
    dtype = _number(space) if isinstance(space, spaces.Box) else np.dtype(np.float32)
    return size, dtype, _cast(dtype, (size,))


def _number(space: Space) -> np.dtype[Any]:
    """Return the dtype of a space's column: float32 for floats, their own for others."""
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else dtype


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
    assert isinstance(leaf.space, spaces.Sequence)
    most = leaf.settings.max_entities or MAX_ENTITIES
    features = leaf.space.feature_space
    for keys, inner in _leaves(features, (*leaf.keys, "…")):
        if not isinstance(inner, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise _unusable(replace(leaf, space=inner, keys=keys))
    flattened = [(keys, *_flattened(inner)) for keys, inner in _leaves(features)]
    width = sum(size for _, size, _, _ in flattened)
    columns = [_below(keys, extract) for keys, _, _, extract in flattened]
    listed = _lister(leaf.space)

    def extract(batch: Any) -> Array:
        entities = [listed(one) for one in batch]
        counts = np.array([len(some) for some in entities], np.intp)
        if counts.size and counts.max() > most:
            raise StageError(
                f"{leaf.owner}: observation '{leaf.name}' has {counts.max()} entities, more than the {most} that there "
                f"is room for; raise environment.observations.{leaf.name}.max_entities"
            )
        padded = np.zeros((len(entities), most, width), np.float32)
        every = [entity for some in entities for entity in some]
        if every:
            empty = cast("Any", create_empty_array(features, len(every)))
            together = concatenate(features, every, empty)
            values = np.concatenate([take(together) for take in columns], axis=1, dtype=np.float32)
            padded[np.arange(most) < counts[:, None]] = values
        return padded

    return leaf.part((most, width), np.float32, extract)


def _lister(space: spaces.Sequence) -> Callable[[Any], list[Any]]:
    """Return a function from a sequence, stacked or not, to a list of entities."""
    if space.stack:
        stacked = space.stacked_feature_space
        return lambda sequence: list(iterate(stacked, sequence))
    return list
