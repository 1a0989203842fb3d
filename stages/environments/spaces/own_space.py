"""An environment's spaces as plain data, without an environment library; `own_space` converts Gymnasium's.

A policy's file contains the spaces (`BehaviorSpec.spaces`), so the policy's callers can use the environment's own
format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.stages.action_units import plain_bounds

if TYPE_CHECKING:
    from gymnasium import Space
_SHOWN = 8
"""Maximum number of distinct bounds that a message shows for a box."""


# Spaces are plain data: a file with Gymnasium's objects would have to be unpickled (docs/decisions/033).
@dataclass(frozen=True, slots=True, eq=False)
class BoxSpace:
    """A space of arrays of numbers between bounds."""

    low: Array
    """[*shape] each lower bound, in the space's own dtype; -inf for no bound."""
    high: Array
    clipped: bool = False
    """True if actions are clipped to these bounds, False if they are scaled to them."""

    kind = "Box"

    def __str__(self) -> str:
        """Return the text for messages, in Gymnasium's form: `Box(0, 255, (84, 84), uint8)`."""
        return f"Box({_shown(self.low)}, {_shown(self.high)}, {self.shape}, {self.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.low.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a value."""
        return self.low.dtype


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceSpace:
    """A space of integers, each one of a few choices: Gymnasium's Discrete, MultiDiscrete and MultiBinary."""

    kind: str
    sizes: NDArray[np.int64]
    """[*shape] the number of choices; shape [] for a Discrete, and 2 everywhere for a MultiBinary."""
    start: NDArray[np.int64]
    """[*shape] the first choice."""
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        """Return the text for messages: `Discrete(3)`, `MultiDiscrete([2, 3])`, `MultiBinary((4,))`."""
        size = self.shape if self.kind == "MultiBinary" else self.sizes.tolist()
        return f"{self.kind}({size}{f', start={self.start.tolist()}' if self.start.any() else ''})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.sizes.shape


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSpace:
    """A space of sequences: any number of values of one space."""

    element: OwnSpace
    stack: bool
    """True if the values come stacked in one array, False if they come as a tuple."""

    kind = "Sequence"
    shape = ()

    def __str__(self) -> str:
        """Return the text for messages."""
        return f"Sequence({self.element}{', stack=True' if self.stack else ''})"


@dataclass(frozen=True, slots=True, eq=False)
class ComposedSpace:
    """A Dict or Tuple of spaces."""

    kind: str
    parts: Mapping[Any, OwnSpace]
    """The parts, keyed by the Dict's key or the Tuple's index."""

    def __str__(self) -> str:
        """Return the text for messages: `Dict('a': Discrete(2))`."""
        named = self.kind == "Dict"
        return (
            f"{self.kind}({', '.join(f'{key!r}: {part}' if named else str(part) for key, part in self.parts.items())})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class OtherSpace:
    """An unsupported space, such as Text."""

    kind: str

    shape = ()

    def __str__(self) -> str:
        """Return the space's kind."""
        return self.kind


Leaf = BoxSpace | ChoiceSpace | SequenceSpace | OtherSpace
OwnSpace = ComposedSpace | Leaf


def leaves(space: OwnSpace, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Leaf]]:
    """Yield the parts of a space that are neither Dict nor Tuple, each with its keys, outermost first."""
    if isinstance(space, ComposedSpace):
        for key, part in space.parts.items():
            yield from leaves(part, (*keys, key))
    else:
        yield keys, space


def own_space(space: Space[Any]) -> OwnSpace:
    """Return a space as plain data; an unsupported space becomes an `OtherSpace`, which callers reject."""
    from gymnasium import spaces

    match space:
        case spaces.Dict():
            return ComposedSpace("Dict", {key: own_space(part) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return ComposedSpace("Tuple", {index: own_space(part) for index, part in enumerate(space.spaces)})
        case spaces.Box():
            return BoxSpace(space.low, space.high)
        case spaces.Discrete():
            return _choices("Discrete", space, space.n, space.start)
        case spaces.MultiDiscrete():
            return _choices("MultiDiscrete", space, space.nvec, space.start)
        case spaces.MultiBinary():
            return _choices("MultiBinary", space, np.full(space.shape, 2), 0)
        case spaces.Sequence():
            return SequenceSpace(own_space(space.feature_space), space.stack)
    return OtherSpace(type(space).__name__)


def with_clipped_boxes(space: OwnSpace) -> OwnSpace:
    """Return an action space whose numbers are clipped at their bounds, instead of scaled to them."""
    if isinstance(space, ComposedSpace):
        return replace(space, parts={key: with_clipped_boxes(part) for key, part in space.parts.items()})
    return replace(space, clipped=True) if isinstance(space, BoxSpace) else space


def plain_spaces(observation: OwnSpace, action: OwnSpace) -> dict[str, Any] | None:
    """Return the value of `BehaviorSpec.spaces`, both spaces as plain data; None if plain data can't hold them."""
    plain = {"observation": to_plain(observation), "action": to_plain(action)}
    return None if None in plain.values() else plain


def to_plain(space: OwnSpace) -> dict[str, Any] | None:
    """Return a space as dictionaries, lists and scalars, for msgpack and JSON; None if these can't hold it."""
    match space:
        case BoxSpace():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            form = {"shape": [*space.shape], "dtype": space.dtype.name, "clipped": space.clipped}
            return {"kind": space.kind, **form, **bounds}
        case ChoiceSpace():
            numbers = {"sizes": space.sizes.tolist(), "start": space.start.tolist()}
            return {"kind": space.kind, "dtype": space.dtype.name, **numbers}
        case SequenceSpace():
            element = to_plain(space.element)
            return None if element is None else {"kind": space.kind, "element": element, "stack": space.stack}
        case ComposedSpace():
            parts = [[key, to_plain(part)] for key, part in space.parts.items()]
            whole = all(isinstance(key, str | int) and part is not None for key, part in parts)
            return {"kind": space.kind, "parts": parts} if whole else None
        case OtherSpace():
            return None


def from_plain(plain: Mapping[str, Any]) -> OwnSpace:
    """Return the space that `to_plain` has converted to plain data.

    Raises:
        ValueError: if the data is not a valid description.
    """
    try:
        kind = str(plain["kind"])
        if kind == "Box":
            return BoxSpace(*plain_bounds(plain), bool(plain.get("clipped", False)))
        if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
            sizes, start = (np.array(plain[key], np.int64) for key in ("sizes", "start"))
            if sizes.shape != start.shape or (sizes < 1).any():
                raise ValueError(f"sizes {sizes.tolist()} and start {start.tolist()} do not match")
            return ChoiceSpace(kind, sizes, start, np.dtype(str(plain["dtype"])))
        if kind == "Sequence":
            return SequenceSpace(from_plain(plain["element"]), bool(plain["stack"]))
        if kind in ("Dict", "Tuple"):
            return ComposedSpace(kind, {key: from_plain(part) for key, part in plain["parts"]})
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a description of a space: {error}") from error
    raise ValueError(f"not a description of a space: its kind is {kind!r}")


def _choices(kind: str, space: Space[Any], sizes: Any, start: Any) -> ChoiceSpace:
    sizes = np.asarray(sizes, np.int64)
    return ChoiceSpace(kind, sizes, np.broadcast_to(np.asarray(start, np.int64), sizes.shape), np.dtype(space.dtype))


def _bound(bound: Array) -> Any:
    """Return a bound as one number if all its numbers are equal, otherwise as a nested list; None means infinity."""
    if bound.size and (bound == bound.flat[0]).all():
        return _finite(bound.flat[0].item())
    return [_finite(number) for number in bound.ravel().tolist()]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _shown(bound: Array) -> str:
    if bound.size and (bound == bound.flat[0]).all():
        return str(bound.flat[0])
    numbers = [f"{number:.4g}" for number in bound.ravel()[:_SHOWN].tolist()]
    return f"[{', '.join(numbers)}{', …' * (bound.size > _SHOWN)}]"
