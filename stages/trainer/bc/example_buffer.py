"""Stores an expert's steps for training or evaluation: encoded, and with actions in the learner's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.queues.columns import Column
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions, policy_actions
from headrace.stages.trainer.imitation.cloning import Examples
from headrace.stages.trainer.intake import drawn_actions


class ExampleBuffer:
    """Stores complete trajectories in order of arrival, oldest first.

    Args:
        design: the learning policy's design.
        teacher_squashed: whether the continuous actions added have SAC's form.
    """

    def __init__(self, design: PolicyDesign, teacher_squashed: bool) -> None:
        self._design = design
        self._teacher_squashed = teacher_squashed
        self._layout = ObservationLayout(design.spec)
        self._columns = self._table()
        self._parts: list[dict[str, Array]] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        """Return the number of steps in the buffer."""
        return sum(self._lengths)

    def add(self, batch: TrajectoryBatch, observations: EncodedObservations) -> None:
        """Add copies of a batch and its encoded observations."""
        rows = self._layout.as_columns(observations)
        continuous, choices = self._actions(batch.rows, batch.num_rows)
        rows["continuous"] = policy_actions(self._design.spec.actions, continuous, squashed=False)
        rows["choices"] = choices
        if "masks" in self._columns:
            rows["masks"] = batch.rows["action_masks"]
        if "previous" in self._columns:
            rows["previous"] = self._previous(batch, continuous, choices)
        self._append(rows, batch.lengths.tolist())

    def forget(self, keep: int) -> None:
        """Drop the oldest trajectories, as long as at least `keep` steps remain."""
        dropped, left = 0, len(self)
        while dropped < len(self._lengths) and left - self._lengths[dropped] >= keep:
            left -= self._lengths[dropped]
            dropped += 1
        self._parts, self._lengths = self._parts[dropped:], self._lengths[dropped:]

    def clear(self) -> None:
        """Remove all trajectories."""
        self._parts, self._lengths = [], []

    def examples(self) -> Examples:
        """Return all trajectories as examples."""
        columns = self._joined()
        return Examples.from_runs(
            self._design,
            self._layout.from_columns(columns),
            columns["continuous"],
            columns["choices"],
            columns.get("masks"),
            columns.get("previous"),
            np.array(self._lengths, np.int64),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the columns, and the trajectories' lengths."""
        return {"columns": self._joined(), "lengths": np.array(self._lengths, np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a column is missing or has the wrong shape; the message names it.
        """
        columns = state["columns"]
        for name, column in self._columns.items():
            got = np.shape(columns[name])[1:] if name in columns else None
            if got != column.shape:
                raise StageError(f"gathered steps: column {name!r}: expected rows of shape {column.shape}, got {got}")
        self.clear()
        rows = {name: np.asarray(columns[name], column.dtype) for name, column in self._columns.items()}
        self._append(rows, [int(length) for length in state["lengths"]])

    def _append(self, rows: Mapping[str, Array], lengths: list[int]) -> None:
        at = 0
        for length in lengths:  # one part per trajectory, so old trajectories can be dropped
            self._parts.append({name: rows[name][at : at + length].copy() for name in self._columns})
            at += length
        self._lengths += lengths

    def _joined(self) -> dict[str, Array]:
        none = {name: np.empty((0, *column.shape), column.dtype) for name, column in self._columns.items()}
        return {name: np.concatenate([none[name], *(part[name] for part in self._parts)]) for name in self._columns}

    def _actions(self, columns: Mapping[str, Array], n: int, prefix: str = "") -> tuple[Array, Array]:
        """Return continuous actions [n, C] as the environment received them, and int64 choices [n, branches]."""
        actions = self._design.spec.actions
        drawn, choices = drawn_actions(actions, columns, n, prefix)
        return environment_actions(actions, drawn, self._teacher_squashed), choices.astype(np.int64)

    def _previous(self, batch: TrajectoryBatch, continuous: Array, choices: Array) -> Array:
        """Return features [N, P] of each row's previous action.

        For the first row of a trajectory, that action is taken from the batch's `previous_` columns.
        """
        actions = self._design.spec.actions
        features = action_features(actions, continuous, choices)
        previous = np.empty_like(features)
        previous[1:] = features[:-1]
        before = self._actions(batch.trajectories, batch.num_trajectories, "previous_")
        previous[np.cumsum(batch.lengths) - batch.lengths] = action_features(actions, *before)
        return previous

    def _table(self) -> dict[str, Column]:
        actions, design = self._design.spec.actions, self._design
        columns = [
            *self._layout.columns(),
            Column("continuous", "float32", (actions.continuous_size,)),
            Column("choices", "int64", (len(actions.discrete_branches),)),
        ]
        if actions.masked:
            columns.append(Column("masks", "bool", (actions.mask_size,)))
        if design.memory_size:
            columns.append(Column("previous", "float32", (design.previous_action_size,)))
        return {column.name: column for column in columns}
