"""Splits the trajectories of a batch where the rows of an update are complete: pure functions of columns.

The piece before the split is like one that flow control closed there: its episode continues, and its next observation
is the first row of the piece after it. Axis letters: N rows of K consecutive trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Columns

Numbers = NDArray[np.int64]
Tables = tuple[Columns, Columns]
"""Columns [N] of rows and [K] of their trajectories."""

_GOES_ON = {"terminated": False, "truncated": False, "group_left": True}


def rows_within(lengths: NDArray[np.integer], room: int) -> Numbers:
    """For each of K trajectories, the number [K] of its leading rows among the first `room` rows of all."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    kept: Numbers = np.clip(room - before, 0, lengths)
    return kept


def moments_within(trajectories: Columns, ticks: Numbers, room: int) -> Numbers:
    """As `rows_within`, for groups of agents: group mates are split at one tick, at which all of them decide.

    The rows may therefore exceed `room`: by fewer than the group's members, or if mates decide at different ticks, up
    to the next tick at which all decide, or to the end of their trajectories.

    Args:
        trajectories: `headrace.queues.columns.GROUP_TRAJECTORY_COLUMNS` and lengths, of one source.
        ticks: [N]
        room: less than N.
    """
    lengths, groups = trajectories["lengths"], trajectories["group_ids"]
    # Trajectories of mates close together; an agent without a group counts as a separate group.
    apart = np.where(groups == 0, -1 - np.arange(len(groups)), groups)
    keys = np.stack([apart, trajectories["next_ticks"]])
    _, first, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = first.argsort().argsort()[which.reshape(-1)]
    ends = np.cumsum(np.bincount(order, lengths).astype(np.int64))
    divided = int(np.searchsorted(ends, room))
    among = order == divided
    kept = np.where(order < divided, lengths, 0).astype(np.int64)
    before = int(ends[divided - 1]) if divided else 0
    kept[among] = _moments_of_group(lengths[among], ticks[among.repeat(lengths)], room - before)
    return kept


# Learning from the surplus would make updates rarer and leave the next window short of rows (docs/decisions/034).
def split(
    rows: Columns, trajectories: Columns, kept: Numbers, following: Mapping[str, str], preceding: Mapping[str, str]
) -> tuple[Tables, Tables]:
    """Split trajectories in two: their `kept` [K] leading rows, and the rest.

    Args:
        rows: [N] columns.
        trajectories: [K] columns, `lengths` among them.
        kept: from 0 to the length of each.
        following: columns of trajectories that hold the next value of a column of rows.
        preceding: columns of trajectories that hold the previous value of a column of rows.
    """
    lengths = trajectories["lengths"]
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    begun, rest = kept > 0, kept < lengths
    parted = begun & rest
    ends = (starts + kept)[parted]
    head = {name: column[begun] for name, column in trajectories.items()}
    head["lengths"] = kept[begun]
    changes = {name: rows[of][ends] for name, of in following.items()}
    for name, value in {**_GOES_ON, **changes}.items():
        if name in head:
            head[name][parted[begun]] = value
    tail = {name: column[rest] for name, column in trajectories.items()}
    tail["lengths"] = (lengths - kept)[rest]
    for name, of in preceding.items():
        tail[name][parted[rest]] = rows[of][ends - 1]
    number = np.arange(int(lengths.sum())) - starts.repeat(lengths)
    chosen = number < kept.repeat(lengths)
    at = int(kept.sum())
    if chosen[:at].all():  # no copies of contiguous rows
        first, rows_left = ({name: column[of] for name, column in rows.items()} for of in (slice(at), slice(at, None)))
    else:
        first, rows_left = ({name: column[of] for name, column in rows.items()} for of in (chosen, ~chosen))
    return (first, head), (rows_left, tail)


def cut_every(
    rows: Columns,
    trajectories: Columns,
    length: int,
    before: int,
    following: Mapping[str, str],
    preceding: Mapping[str, str],
) -> Columns:
    """Cut trajectories at each multiple of `length` rows; the rows stay as they are.

    Args:
        rows: [N] columns.
        trajectories: [K] columns, `lengths` among them.
        length: rows between two cuts.
        before: the number of earlier rows.
        following: columns of trajectories that hold the next value of a column of rows.
        preceding: columns of trajectories that hold the previous value of a column of rows.

    Returns:
        The columns of the pieces.
    """
    lengths = trajectories["lengths"]
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    first, last = (before + starts) // length, (before + starts + lengths - 1) // length
    counts = last - first + 1
    if not (counts > 1).any():
        return trajectories
    whole = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(whole)) - np.repeat(np.cumsum(counts) - counts, counts)
    begun = np.where(number == 0, starts[whole], (first[whole] + number) * length - before)
    goes_on = number < counts[whole] - 1
    pieces = {name: column[whole] for name, column in trajectories.items()}
    pieces["lengths"] = np.diff(begun, append=int(lengths.sum()))
    ends = begun[1:][goes_on[:-1]]
    changes = {name: rows[of][ends] for name, of in following.items()}
    for name, value in {**_GOES_ON, **changes}.items():
        if name in pieces:
            pieces[name][goes_on] = value
    for name, of in preceding.items():
        pieces[name][number > 0] = rows[of][begun[number > 0] - 1]
    return pieces


def _moments_of_group(lengths: NDArray[np.integer], ticks: Numbers, room: int) -> Numbers:
    """Leading rows [k] of mates' trajectories, up to the first tick at which all decide after at least `room` rows."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    moments, place = np.unique(ticks, return_inverse=True)
    deciding = np.bincount(place)
    begin = np.bincount(place[starts], minlength=len(moments))
    all_decide = deciding - begin == np.cumsum(begin) - begin
    possible = np.flatnonzero(all_decide & (np.cumsum(deciding) - deciding >= room))
    if not len(possible):
        return lengths.astype(np.int64)
    earlier: Numbers = np.add.reduceat(ticks < moments[possible[0]], starts, dtype=np.int64)
    return earlier
