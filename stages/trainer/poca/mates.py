"""The members of a group at one moment, found by sorting: pure functions of columns.

A moment is a tick of one actor; mates are members of the same group at the same moment. Axis letters: n members (rows
of a buffer, or trajectories at their ends), M mates that the largest group has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer

NO_ACTOR = -1
"""The source of rows from before a resume."""


@dataclass(frozen=True, slots=True)
class Mates:
    """The mates of each of n members."""

    numbers: NDArray[np.int64]
    """[n, M] numbers of members; the member's own where it has fewer mates."""
    present: NDArray[np.bool_]
    """[n, M] true where there is a mate."""

    def sums(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sums [n] over each member's mates, of values [n]."""
        found: NDArray[np.float32] = np.where(self.present, values[self.numbers], np.float32(0)).sum(1)
        return found


def mates_of(sources: NDArray[np.int64], group_ids: NDArray[np.int64], ticks: NDArray[np.int64]) -> Mates:
    """Find the mates of all members: those of the same source, group and tick. Group 0 is none.

    Args:
        sources: [n] incarnation of an actor; each counts ticks of its own.
        group_ids: [n]
        ticks: [n]
    """
    n = len(ticks)
    order = np.lexsort((ticks, group_ids, sources))
    begins = np.ones(n, np.bool_)
    begins[1:] = group_ids[order][1:] == 0
    for key in (sources, group_ids, ticks):
        ordered = key[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, n))
    group = np.cumsum(begins) - 1
    first, sizes = first[group][:, None], sizes[group][:, None]
    steps = np.arange(1, int(sizes.max(initial=1)))
    # The others of a group are those 1, 2, … places on, round and round.
    places = first + (np.arange(n)[:, None] - first + steps) % sizes
    mates = Mates(np.empty((n, len(steps)), np.int64), np.empty((n, len(steps)), np.bool_))
    mates.present[order] = steps < sizes
    mates.numbers[order] = np.where(steps < sizes, order[places], order[:, None])
    return mates


def row_mates(buffer: RolloutBuffer) -> Mates:
    """The rows of the same moment. A mate whose row is not in the buffer counts as absent."""
    if not buffer.grouped:
        return _none(len(buffer.rows))
    lengths = buffer.trajectories["lengths"]
    sources, group_ids = (buffer.trajectories[name].repeat(lengths) for name in ("sources", "group_ids"))
    return mates_of(sources, group_ids, buffer.rows["ticks"])


def final_mates(buffer: RolloutBuffer) -> Mates:
    """The trajectories that were closed at the same moment, as those of mates always are."""
    trajectories = buffer.trajectories
    if not buffer.grouped:
        return _none(len(trajectories))
    return mates_of(trajectories["sources"], trajectories["group_ids"], trajectories["next_ticks"])


def renumbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """A buffer's state with moments numbered anew in order of arrival, all of a source that no actor has.

    Ticks begin anew when a run is resumed: rows from before a resume are mates of none that come after it, and a
    resumed trainer has the same state as one that was never interrupted.

    Args:
        state: `RolloutBuffer.state_dict()` of a buffer with groups; stays as it is.
    """
    rows, trajectories = dict(state["rows"]), dict(state["trajectories"])
    sources = trajectories["sources"]
    rows["ticks"] = _moments(sources.repeat(trajectories["lengths"]), rows["ticks"])
    trajectories["next_ticks"] = _moments(sources, trajectories["next_ticks"])
    trajectories["sources"] = np.full_like(sources, NO_ACTOR)
    return {**state, "rows": rows, "trajectories": trajectories}


def _moments(sources: NDArray[np.int64], ticks: NDArray[np.int64]) -> NDArray[np.int64]:
    _, first, which = np.unique(np.stack([sources, ticks]), axis=1, return_index=True, return_inverse=True)
    numbers: NDArray[np.int64] = first.argsort().argsort()[which.reshape(-1)]
    return numbers


def _none(n: int) -> Mates:
    return Mates(np.empty((n, 0), np.int64), np.empty((n, 0), np.bool_))
