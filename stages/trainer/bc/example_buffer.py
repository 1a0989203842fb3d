"""Stores an expert's steps for training or evaluation: encoded, and with actions in the learner's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.queues.columns import Column
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions, policy_actions
from headrace.stages.trainer.imitation.cloning import Examples
from headrace.stages.trainer.intake import drawn_actions
from headrace.stages.trainer.on_policy.rollout import ColumnTable


class ExampleBuffer:
    """Stores complete trajectories in order of arrival, oldest first.

    Args:
        design: the learning policy's design.
        teacher_squashed: whether the continuous actions added have SAC's form.
    """

    def __init__(self, design: PolicyDesign, teacher_squashed: bool) -> None:
        self._design, self._actions = design, design.spec.actions
        self._teacher_squashed = teacher_squashed
        self._layout = ObservationLayout(design.spec)
        columns = [
            *self._layout.columns(),
            Column("continuous", "float32", (self._actions.continuous_size,)),
            Column("choices", "int64", (len(self._actions.discrete_branches),)),
        ]
        if self._actions.masked:
            columns.append(Column("masks", "bool", (self._actions.mask_size,)))
        if design.memory_size:
            columns.append(Column("previous", "float32", (design.previous_action_size,)))
        self._rows = ColumnTable(columns, 0)
        self._trajectories = ColumnTable([Column("lengths", "int64")], 0)

    def __len__(self) -> int:
        """Return the number of steps in the buffer."""
        return len(self._rows)

    def add(self, batch: TrajectoryBatch, observations: EncodedObservations) -> None:
        """Add copies of a batch and its encoded observations."""
        continuous, choices = self._received(batch.rows, batch.num_rows)
        rows = {
            **self._layout.as_columns(observations),
            "continuous": policy_actions(self._actions, continuous, squashed=False),
            "choices": choices,
        }
        if self._actions.masked:
            rows["masks"] = batch.rows["action_masks"]
        if self._design.memory_size:
            features = action_features(self._actions, continuous, choices)
            rows["previous"] = np.roll(features, 1, axis=0)
            before = self._received(batch.trajectories, batch.num_trajectories, "previous_")
            rows["previous"][np.cumsum(batch.lengths) - batch.lengths] = action_features(self._actions, *before)
        self._rows.append(rows)
        self._trajectories.append({"lengths": batch.lengths})

    def forget(self, keep: int) -> None:
        """Drop the oldest trajectories, as long as at least `keep` steps remain."""
        lengths = self._trajectories["lengths"]
        ends = np.cumsum(lengths)
        dropped = int((len(self) - ends >= keep).sum())
        if dropped:
            first, columns = int(ends[dropped - 1]), self._rows.columns()
            columns = {name: column[first:].copy() for name, column in columns.items()}
            self.load_state_dict({"columns": columns, "lengths": lengths[dropped:].copy()})

    def clear(self) -> None:
        """Remove all trajectories."""
        self._rows.clear()
        self._trajectories.clear()

    def examples(self) -> Examples:
        """Return all trajectories as examples, which are valid until the next `add`."""
        columns = self._rows.columns()
        return Examples(
            self._design,
            self._layout.from_columns(columns),
            columns["continuous"],
            columns["choices"],
            columns.get("masks"),
            columns.get("previous"),
            self._trajectories["lengths"],
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the columns, and the trajectories' lengths."""
        return {"columns": self._rows.state_dict(), **self._trajectories.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a column is missing or has the wrong shape; the message names it.
        """
        self._rows.load_state_dict(state["columns"])
        self._trajectories.load_state_dict(state)

    def _received(self, columns: Mapping[str, Array], n: int, prefix: str = "") -> tuple[Array, Array]:
        """Return continuous actions [n, C] as the environment received them, and int64 choices [n, branches]."""
        drawn, choices = drawn_actions(self._actions, columns, n, prefix)
        return environment_actions(self._actions, drawn, self._teacher_squashed), choices.astype(np.int64)
