"""Reads action masks from environments, scripts and clients.

A column of masks is [n, choices], true where a choice is allowed, with the choices of all branches side by side. The
input holds booleans, or 0 and 1 of any type, in one of these forms:

- an array of all choices side by side, [choices] or [1, choices];
- an array with a row for each branch, [branches, most choices], padded at the end of shorter rows;
- a tuple or list of an array for each branch, or of a mask for each part of a Tuple;
- for a Dict, a map with its keys, as `Dict.sample` takes it;
- for a MultiBinary, an array for each flag [2]: may be 0, may be 1. The form of `MultiBinary.sample` is refused.

None, or a missing mask, allows everything. For several agents, arrays have an additional leading axis; a tuple has an
array for each branch or part, and a list has a mask for each agent.

`AgentMasks` decides whether agents of Gymnasium and PettingZoo environments have masks, in the observation or the info.
If both have masks, both apply. A mask that first appears after the policy was made without masks is an error.

Axis letters: n agents.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.environments.spaces.own_space import ChoiceSpace, ComposedSpace, OwnSpace, from_plain, leaves
from headrace.stages.errors import BrokenEnvironmentError, StageError, Who

MASK = "action_mask"
"""The key of masks in infos, and in observations that are dicts."""
Masks = NDArray[np.bool_]
Lead = tuple[int, ...]
"""The axes before those of one mask: () for one agent, (n,) for several."""
_MEANING = "1 for each allowed choice and 0 for each forbidden choice"
_LEAST = "at least one 1, which means allowed"


class MaskError(ValueError):
    """An invalid mask.

    Attributes:
        row: the agent's row; None if the mask belongs to all agents.
        at: the position within the mask, such as `['arm']`; empty for the mask itself.
        problem: text that follows the mask's name in a sentence.
    """

    def __init__(self, problem: str, row: int | None = None, at: str = "") -> None:
        super().__init__(f"{at} {problem}".lstrip())
        self.problem, self.row, self.at = problem, row, at


class MaskReader:
    """Reads masks for one action space.

    Args:
        space: the action space.
        names: the names of the branches, used in messages; empty to use numbers.
        least: the expectation that messages state if a mask leaves no choice.
        free: number of choices of an additional branch, which masks may omit (the policy's action repeat).

    Attributes:
        branches: the number of choices in each branch of the space.
        width: the total number of choices of these branches.
    """

    def __init__(self, space: OwnSpace, names: Sequence[str] = (), least: str = _LEAST, free: int = 0) -> None:
        self._space = space
        self.branches, self.width, self._starts = _layout(space)[:3]
        self._names, self._least = names, least
        self._free = free
        self._with_free = ComposedSpace("Tuple", {0: space, 1: _choices(free)}) if free else space

    @classmethod
    def of_branches(cls, actions: ActionSpec, least: str = _LEAST) -> MaskReader:
        """Return the reader for an environment with branches and no space.

        In maps, the keys are the branches' names.
        """
        return _reader_of(actions.discrete_branches, actions.branch_names, least)

    @classmethod
    def of_policy(cls, spec: BehaviorSpec) -> MaskReader:
        """Return the reader for a policy's callers.

        It reads masks for the environment's own space if the spec contains it.
        """
        return _reader_of_policy(spec, id(spec.spaces))

    def read(self, masks: Any, n: int, present: Masks | None = None, deciding: Masks | None = None) -> Masks:
        """Return the masks [n, choices] of several agents, a new array.

        Args:
            masks: the masks of n agents, in one of the forms that this module reads.
            n: the number of agents.
            present: [n] false for agents without a mask, like `gymnasium.vector`'s `_action_mask`; None if all agents
                have a mask.
            deciding: [n] true for agents that need an allowed choice; None for all.

        Raises:
            MaskError: if a mask is invalid; its `row` is the agent's row.
        """
        space = self._space
        if self._free and _as_array(masks).shape[-1:] == (self.width + self._free,):
            space = self._with_free
        allowed = _read(space, masks, (n,), "")
        if present is not None:
            allowed[~present] = True
        self.check_choice(allowed, deciding)
        if self._free and space is self._space:
            allowed = np.concatenate((allowed, np.ones((n, self._free), np.bool_)), axis=1)
        return allowed

    def check_choice(self, allowed: Masks, deciding: Masks | None = None) -> None:
        """Check that masks [n, choices] allow a choice in each branch. The arguments are as in `read`.

        Raises:
            MaskError: if a mask allows no choice in a branch.
        """
        if not allowed.shape[1]:
            return
        sizes = (*self.branches, self._free) if allowed.shape[1] > self.width else self.branches
        starts = (*self._starts, self.width) if allowed.shape[1] > self.width else self._starts
        stuck = ~np.logical_or.reduceat(allowed, starts, axis=1)
        if not np.count_nonzero(stuck):
            return
        if deciding is not None:
            stuck[~deciding] = False
        for row, branch in np.argwhere(stuck).tolist():
            name = repr(self._names[branch]) if branch < len(self._names) else branch
            of = f" of branch {name}" if len(sizes) > 1 else ""
            raise MaskError(f"forbids all {sizes[branch]} choices{of}; expected {self._least}", row)


@lru_cache(maxsize=256)
def _reader_of(branches: tuple[int, ...], names: tuple[str, ...], least: str = _LEAST) -> MaskReader:
    space: OwnSpace = _choices(branches)
    if len({*names}) == len(branches):
        space = ComposedSpace("Dict", {name: _choices(size) for name, size in zip(names, branches, strict=True)})
    return MaskReader(space, names, least)


@lru_cache(maxsize=64)
def _reader_of_policy(spec: BehaviorSpec, _spaces: int) -> MaskReader:
    """Return the reader for a policy, cached by the spec and the identity of its spaces, which equality ignores."""
    plain, actions = (spec.spaces or {}).get("action"), spec.actions
    free = actions.discrete_branches[-1] if spec.action_repeat == "learned" else 0
    decided = actions.discrete_branches[: -1 if free else None], actions.branch_names[: -1 if free else None]
    space = from_plain(plain) if plain is not None else _reader_of(*decided)._space
    return MaskReader(space, decided[1], free=free)


class _Layout(NamedTuple):
    """The valid shapes of a space's mask arrays."""

    branches: tuple[int, ...]
    width: int
    starts: NDArray[np.int64]
    """[branches] the first choice of each branch in a row."""
    shape: Lead
    """Shape of the space itself."""
    filled: NDArray[np.int64]
    """[width] positions of the choices in a flattened array with a row for each branch, padded to the largest
    branch."""


@lru_cache(maxsize=1024)
def _layout(space: OwnSpace) -> _Layout:
    branches = tuple(
        int(size) for _, leaf in leaves(space) if isinstance(leaf, ChoiceSpace) for size in leaf.sizes.flat
    )
    choices, most = np.arange(max(branches, default=0)), max(branches, default=0)
    filled = np.concatenate([[], *(branch * most + choices[:size] for branch, size in enumerate(branches))])
    shape = space.shape if isinstance(space, ChoiceSpace) else (len(branches),)
    return _Layout(branches, sum(branches), np.cumsum((0, *branches[:-1])), shape, filled.astype(np.int64))


@lru_cache(maxsize=1024)
def _ways_to_split(space: OwnSpace) -> tuple[tuple[OwnSpace, ...], ...]:
    """Return the ways to split a space, into its own parts or its branches.

    A tuple of masks has an entry for each part.
    """
    if isinstance(space, ComposedSpace):
        return tuple(space.parts.values()), tuple(_choices(size) for size in _layout(space).branches)
    if isinstance(space, ChoiceSpace) and space.shape:
        rows = zip(space.sizes, space.start, strict=True)
        by_rows = tuple(ChoiceSpace(space.kind, np.asarray(row), start, space.dtype) for row, start in rows)
        return (
            (by_rows, tuple(_choices(size) for size in _layout(space).branches)) if len(space.shape) > 1 else (by_rows,)
        )
    return ((space,),)


def _choices(sizes: Any) -> ChoiceSpace:
    sizes = np.asarray(sizes, np.int64)
    return ChoiceSpace("MultiDiscrete" if sizes.ndim else "Discrete", sizes, np.zeros_like(sizes), sizes.dtype)


def _read(space: OwnSpace, given: Any, lead: Lead, at: str) -> Masks:
    """Read the masks of a space into a new array [*lead, choices]."""
    if isinstance(given, np.ndarray):
        if given.dtype != object:
            return _of_array(space, given, lead, at)
        given = given.tolist()
    if given is None:
        return np.ones((*lead, _layout(space).width), np.bool_)
    if lead and isinstance(given, list) and len(given) == lead[0]:
        return _of_each(space, given, at)
    if isinstance(given, Mapping):
        return _of_map(space, given, lead, at)
    if isinstance(given, tuple | list):
        return _of_sequence(space, given, lead, at)
    return _of_array(space, _as_array(given), lead, at)


def _of_each(space: OwnSpace, given: Sequence[Any], at: str) -> Masks:
    """Read each agent's mask."""
    together = _together(given)
    if together is not None:
        with suppress(MaskError):  # the code below finds the wrong mask
            return _read(space, together, (len(given),), at)
    allowed = np.ones((len(given), _layout(space).width), np.bool_)
    for row, mask in enumerate(given):
        try:
            allowed[row] = _read(space, mask, (), at)
        except MaskError as error:
            raise MaskError(error.problem, row, error.at) from None
    return allowed


def _of_map(space: OwnSpace, given: Mapping[Any, Any], lead: Lead, at: str) -> Masks:
    if not isinstance(space, ComposedSpace):
        raise MaskError(f"is a map, but the space is {space}, not a Dict; {_expected(space)}", None, at)
    # For each `arm`, a vector environment also has `_arm`: which instances have it.
    unknown = [key for key in given if key not in space.parts and not (str(key)[:1] == "_" and str(key)[1:] in given)]
    if unknown:
        keys = ", ".join(map(repr, space.parts))
        raise MaskError(
            f"has the key {unknown[0]!r}, which the action space does not have; its keys are: {keys}", None, at
        )
    columns = []
    for key, part in space.parts.items():
        allowed = _read(part, given.get(key), lead, f"{at}[{key!r}]")
        present = given.get(f"_{key}") if lead else None
        if present is not None:
            allowed[~np.asarray(present, np.bool_)] = True
        columns.append(allowed)
    return np.concatenate(columns, axis=-1)


def _of_sequence(space: OwnSpace, given: Sequence[Any], lead: Lead, at: str) -> Masks:
    """Read a sequence, which holds numbers, or one mask for each agent, part or branch."""
    if lead and len(given) == lead[0] and all(len(parts) != len(given) for parts in _ways_to_split(space)):
        return _of_each(space, given, at)
    numbers, layout = _are_numbers(given), _layout(space)
    if numbers or not lead:
        array, filled_up = _as_array(given), (len(layout.branches), max(layout.branches, default=0))
        if numbers or (array.dtype != object and (isinstance(space, ChoiceSpace) or array.shape == filled_up)):
            return _of_array(space, array, lead, at)
    for parts in _ways_to_split(space):
        pairs = list(zip(parts, given, strict=False))
        if len(parts) == len(given) and all(entry is None or _layout(part).width for part, entry in pairs):
            return np.concatenate(
                [_read(part, entry, lead, f"{at}[{i}]") for i, (part, entry) in enumerate(pairs)], axis=-1
            )
    return _of_array(space, _as_array(given), lead, at)


def _together(masks: Sequence[Any]) -> NDArray[Any] | None:
    """Combine agents' arrays, or sequences of numbers, into one array, which is faster to read; None if they differ."""
    first = masks[0] if masks else None
    if isinstance(first, np.ndarray):
        alike = all(isinstance(mask, np.ndarray) and mask.shape == first.shape for mask in masks)
        return np.array(masks) if alike and all(mask.dtype == first.dtype for mask in masks) else None
    if not isinstance(first, tuple | list) or not _are_numbers(first):
        return None
    array = _as_array(masks) if all(type(mask) is type(first) for mask in masks) else None
    return array if array is not None and array.dtype != object else None


def _are_numbers(given: Sequence[Any]) -> bool:
    return all(isinstance(entry, bool | int | float | np.generic) for entry in given)


def _as_array(given: Any) -> NDArray[Any]:
    """Convert to an array of numbers or, if that fails, to an object array that holds the input."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # different lengths; a tensor that requires grad
        array = np.empty(0, object)
    if array.dtype.kind in "biuf":
        return array
    held = np.empty(1, object)
    held[0] = given
    return held


def _of_array(space: OwnSpace, array: NDArray[Any], lead: Lead, at: str) -> Masks:
    """Read an array of numbers [*lead, …]."""
    layout = _layout(space)
    if not layout.width:
        raise MaskError(
            f"is for {space}, which can't be masked; expected a mask of discrete actions only, or None",
            None,
            at,
        )
    shape = array.shape[len(lead) :]
    if array.dtype.kind not in "biuf" or array.shape[: len(lead)] != lead:
        raise _unfit(space, array, lead, at)
    if shape == (layout.width,):
        given = array
    elif max(shape, default=0) == layout.width == prod(shape):
        given = array.reshape(*lead, layout.width)
    elif shape[:-1] in (layout.shape, (len(layout.branches),)) and shape[-1:] == (max(layout.branches),):
        given = array.reshape(*lead, -1)[..., layout.filled]
    else:
        raise _unfit(space, array, lead, at)
    allowed: Masks = given.astype(np.bool_)
    if given.dtype != np.bool_ and np.count_nonzero(allowed != given):
        *row, index = np.argwhere(allowed != given)[0].tolist()
        problem = f"has {given[(*row, index)]} at index {index}; expected {_MEANING}"
        raise MaskError(problem, row[0] if lead else None, at)
    return allowed


def _unfit(space: OwnSpace, array: NDArray[Any], lead: Lead, at: str) -> MaskError:
    if array.dtype.kind in "biuf":
        got = f"has shape {array.shape}" + (f", for {lead[0]} agents" if lead else "")
    else:
        given = array[0] if array.dtype == object else array
        got = f"is {type(given).__name__} {reprlib.repr(given)}"
    return MaskError(f"{got}; {_expected(space)}", None, at)


def _expected(space: OwnSpace) -> str:
    layout = _layout(space)
    sizes = f" ({' + '.join(map(str, layout.branches))})" if len(layout.branches) > 1 else ""
    return f"expected {_MEANING}: {layout.width}{sizes}"


log = logging.getLogger(__name__)

_NAMES = {
    *("mask", "masks", "legal_moves", "valid_moves", "invalid_actions"),
    *("legal_actions", "valid_actions", "available_actions", "avail_actions"),
}
_LATE = (
    f"the infos now contain {MASK}, but at the first reset they did not, so the policy was made without masks and "
    f"would take forbidden actions; expected info[{MASK!r}] from reset() as well (all ones if everything is allowed), "
    "or the key in the observation space"
)


def like_masks(keys: Iterable[Any]) -> list[str]:
    """Return the keys that almost certainly hold a mask."""
    named = [key for key in keys if isinstance(key, str) and key.strip("_") != MASK]
    return [key for key in named if key in _NAMES or ("mask" in key and "action" in key)]


class AgentMasks:
    """One behaviour's action masks: whether its agents have any, and their content in observations and infos.

    Args:
        reader: reads masks for the agents' action space.
        observed: True if the agents' observation space has the key `action_mask`.
        owner: the environment's name, used in messages.

    Attributes:
        masked: True if agents have masks. The value is fixed once the spec is made.

    Raises:
        StageError: if the observations have masks, but the actions have no choices.
    """

    def __init__(self, reader: MaskReader, observed: bool, owner: str) -> None:
        self._reader = reader
        self._owner, self._warned = owner, False
        self.masked = observed
        if observed and not reader.width:
            raise StageError(
                f"{owner}: its observation space has the key {MASK!r}, but its actions have no choices that a mask "
                "could forbid; expected a mask of discrete actions: remove the key, or rename it if it is an "
                "observation"
            )

    def expect(self, info: Iterable[Any]) -> None:
        """Look for a mask among an info's keys, and warn about a mask under a different name.

        Must be called before the spec is made.
        """
        if not self._reader.width:
            return
        self.masked = self.masked or MASK in info
        if not self.masked and not self._warned and (unread := like_masks(info)):
            self._warned = True
            log.warning(
                "%s: it has %r, which Headrace ignores; put action masks into the infos of reset and step under the "
                "key %r, with 1 for each allowed choice (docs/algorithms.md#actions)",
                *(self._owner, unread[0], MASK),
            )

    def read(
        self,
        n: int,
        observed: Any,
        informed: Any,
        who: Who,
        present: Masks | None = None,
        deciding: Masks | None = None,
    ) -> Masks | None:
        """Return the masks [n, choices] of n agents; None if agents have none.

        Args:
            n: the number of agents.
            observed: the masks in the agents' observations; None if the observations have none.
            informed: the masks in the agents' infos; may be None or contain None.
            who: returns the beginning of a message about a row or, for None, about all rows.
            present: which agents have a mask in their infos, as in `MaskReader.read`.
            deciding: as in `MaskReader.read`.

        Raises:
            BrokenEnvironmentError: if a mask is invalid.
            StageError: if a mask appears although the spec has no masks.
        """
        allowed = None
        places = (f"{MASK} in the observation", observed, None), (f"info[{MASK!r}]", informed, present)
        for name, masks, which in places:
            if _is_nothing(masks):
                continue
            if not self.masked and self._reader.width:
                raise StageError(f"{who(None)}: {_LATE}")
            try:
                read = self._reader.read(masks, n, which, deciding)
                if allowed is not None:
                    read &= allowed
                    self._reader.check_choice(read, deciding)
            except MaskError as error:
                raise BrokenEnvironmentError(f"{who(error.row)}: {name}{error.at} {error.problem}") from error
            allowed = read
        return np.ones((n, self._reader.width), np.bool_) if self.masked and allowed is None else allowed


def _is_nothing(masks: Any) -> bool:
    if isinstance(masks, list) or (isinstance(masks, np.ndarray) and masks.dtype == object):
        return all(mask is None for mask in masks)
    return masks is None
