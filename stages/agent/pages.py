"""The storage of trajectories in the making: columns cut into pages, one page a trajectory.

A page has room for `horizon` rows, one after the last row in use (its observation columns hold the next observation),
and then one before the next page's first row (its action columns hold the action before that page's trajectory). So a
step is written once, on arrival, and everything that a finished trajectory needs is then read from its page.

Page 0 belongs to no agent: an agent without an open decision points to its last row, `nowhere`. Rows written there
are garbage, but for the actions: they are never written there, and their zeros are the action before an episode's
first one.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import GROUP_ROW_COLUMNS
from headrace.queues.errors import ShapeError
from headrace.queues.messages import Array, Columns, StepBatch
from headrace.stages.slots import FreeNumbers, Numbers, Where, enlarged

_ACTIONS = ("continuous_actions", "discrete_actions")


class PageColumn:
    """One column of the storage, [R, *shape].

    Attributes:
        values: the rows.
        records: the rows as [R] opaque elements: NumPy scatters those three times as fast as short rows.
        values_before: `values` shifted by one, so that at a row's number stands what is in the row before it.
        records_before: `records` shifted by one.
    """

    __slots__ = (
        "_dtype",
        "_memory",
        "_record",
        "_single",
        "name",
        "records",
        "records_before",
        "shape",
        "values",
        "values_before",
    )

    def __init__(self, name: str, like: Array, rows: int) -> None:
        self.name = name
        self.shape = like.shape[1:]
        self._dtype = like.dtype
        size = prod(self.shape)
        # One number per row is an element already; NumPy has no elements of 0 bytes.
        self._single = size == 1
        self._record = None if size < 2 else np.dtype((np.void, size * like.itemsize))
        self._memory: Array = np.zeros((1 + rows, *self.shape), like.dtype)
        self._make_views()

    def as_records(self, values: Array) -> Array:
        """Values [n, *shape] as [n] elements of this storage.

        Raises:
            ShapeError: if the values are not of this column's dtype and shape.
        """
        if values.shape[1:] != self.shape or values.dtype != self._dtype:
            raise ShapeError(
                f"column {self.name!r}: expected {self._dtype} rows of shape {self.shape}, as in the "
                f"first step, got {values.dtype} rows of shape {values.shape[1:]}"
            )
        if self._record is None:
            return values.ravel() if self._single else values
        buffer = values if values.flags.c_contiguous else np.ascontiguousarray(values)
        return np.ndarray(len(values), self._record, buffer)

    def grow(self, rows: int) -> None:
        """Make the storage longer; arrays read from the attributes before are stale then."""
        self._memory = enlarged(self._memory, 1 + rows)
        self._make_views()

    def _make_views(self) -> None:
        self.values, self.values_before = self._memory[1:], self._memory[:-1]
        self.records, self.records_before = self.as_records(self.values), self.as_records(self.values_before)


class Pages:
    """The pages of one behaviour id. Rows count through all pages; a page starts at its first step's row.

    Attributes:
        horizon: rows of a full page.
        stride: rows from one page to the next.
        nowhere: the row of agents without an open decision.
        observations: columns of observations.
        decisions: columns of decisions.
        actions: those of `decisions` that are actions.
        rewards: [R] reward after the action of a row.
        versions: [R] version of the policy that decided.
        of_groups: `columns.GROUP_ROW_COLUMNS` [R] by name; empty where the behaviour has no groups.
        env_frames: [R] environment steps that the action of a row lasted; None where each lasts one.
    """

    def __init__(self, step: StepBatch, horizon: int) -> None:
        self.horizon = horizon
        self.stride = horizon + 2
        # Arrays of no dimension: to take a Python number costs NumPy as much as the rest of an operation on few rows.
        self._horizon, self._stride = np.array(horizon, np.int64), np.array(self.stride, np.int64)
        self.nowhere = np.array(horizon - 1, np.int64)
        self._nowhere_bytes = self.nowhere.tobytes()
        rows = (1 + 2 * len(step.agent_ids)) * self.stride
        self._free = FreeNumbers(np.arange(self.stride, rows, self.stride))
        self.observations = tuple(PageColumn(f"obs_{i}", o, rows) for i, o in enumerate(step.observations))
        self.decisions = tuple(PageColumn(name, values, rows) for name, values in step.decisions.items())
        self.actions = tuple(column for column in self.decisions if column.name in _ACTIONS)
        self.rewards = np.zeros(rows, np.float32)
        self.versions = np.zeros(rows, np.int64)
        grouped = step.group_ids is not None
        self.of_groups: dict[str, Array] = {c.name: np.zeros(rows, c.dtype) for c in GROUP_ROW_COLUMNS if grouped}
        self.env_frames = None if step.env_frames is None else np.zeros(rows, np.int32)
        self._names = step.decisions.keys()

    def allocate(self, count: int) -> Numbers:
        """First rows of free pages, [count], to be used before the next `release`; columns may have grown."""
        if len(self._free) < count:
            self._grow(count)
        return self._free.allocate(count)

    def release(self, starts: Numbers) -> None:
        """Free the pages that start there."""
        self._free.release(starts)

    def lengths(self, ends: Numbers) -> Numbers:
        """Number of rows before the rows `ends` [k] in their pages; `horizon` for the row after `nowhere`."""
        lengths: Numbers = ends % self._stride
        return lengths

    def full(self, lengths: Numbers) -> Numbers:
        """Places of full pages among pages with these lengths [k]; those of the row after `nowhere` as well."""
        places: Numbers = (lengths == self._horizon).nonzero()[0]
        return places

    def unwritten(self, rows: Numbers) -> Where:
        """Places of `nowhere` among rows [k]; often all are, which is found without an array of flags."""
        if rows.tobytes() == self._nowhere_bytes * len(rows):
            return slice(len(rows))
        places: Numbers = (rows == self.nowhere).nonzero()[0]
        return places

    def observation_records(self, observations: tuple[Array, ...]) -> list[tuple[PageColumn, Array]]:
        """The columns of observations, each with the values [n, *shape] for it as records.

        Raises:
            ShapeError: if they differ in number, dtype or shape from the first step's.
        """
        if len(observations) != len(self.observations):
            raise ShapeError(f"expected {len(self.observations)} observations, got {len(observations)}")
        return [(c, c.as_records(o)) for c, o in zip(self.observations, observations, strict=True)]

    def write_decisions(self, rows: Numbers, decisions: Columns, versions: NDArray[np.int64]) -> None:
        """Write decisions [d, …] to rows [d].

        Raises:
            ShapeError: if the columns differ in name, dtype or shape from the first step's.
        """
        if decisions.keys() != self._names:
            raise ShapeError(f"expected decision columns {[*self._names]} as in the first step, got {[*decisions]}")
        for column in self.decisions:
            column.records[rows] = column.as_records(decisions[column.name])
        self.versions[rows] = versions

    def move(self, source: Numbers, target: Numbers) -> None:
        """Copy open decisions from rows [n] to first rows [n] of other pages, and the actions before them."""
        for column in (*self.observations, *self.decisions):
            column.records[target] = column.records[source]
        self.versions[target] = self.versions[source]
        if self.of_groups:
            self.of_groups["ticks"][target] = self.of_groups["ticks"][source]
        self.keep_actions(source, target)

    def keep_actions(self, source: Numbers, target: Numbers) -> None:
        """Make the actions before rows `source` [n] also those before rows `target` [n]."""
        for column in self.actions:
            column.records_before[target] = column.records_before[source]

    def _grow(self, count: int) -> None:
        present = len(self.rewards)
        rows = 2 * present + count * self.stride
        self._free.extend(np.arange(present, rows, self.stride))
        for column in (*self.observations, *self.decisions):
            column.grow(rows)
        self.rewards = enlarged(self.rewards, rows)
        self.versions = enlarged(self.versions, rows)
        if self.env_frames is not None:
            self.env_frames = enlarged(self.env_frames, rows)
        for name, values in self.of_groups.items():
            self.of_groups[name] = enlarged(values, rows)
