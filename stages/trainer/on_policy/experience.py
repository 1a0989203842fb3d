"""A full rollout buffer in the terms of networks and reward signals: inputs, previous actions, transitions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from queues.messages import Array
from queues.specs import BehaviorSpec
from stages.policy.actions import action_features, environment_actions
from stages.policy.network.inputs import Inputs
from stages.policy.observations import Encoded, ObservationLayout
from stages.trainer.on_policy.rollout_buffer import ColumnTable, RolloutBuffer
from stages.trainer.transitions import Transitions


def drawn_actions(spec: BehaviorSpec, table: ColumnTable, prefix: str = "") -> tuple[NDArray[np.float32], Array]:
    """Continuous actions [n, C] as the policy drew them, and choices [n, branches]; width 0 where there are none."""
    n, actions = len(table), spec.actions
    return (
        table[f"{prefix}continuous_actions"] if actions.continuous_size else np.empty((n, 0), np.float32),
        table[f"{prefix}discrete_actions"] if actions.discrete_branches else np.empty((n, 0), np.int32),
    )


def taken_actions(spec: BehaviorSpec, buffer: RolloutBuffer) -> NDArray[np.float32]:
    """Features [N, P] of each row's action."""
    return _features(spec, *drawn_actions(spec, buffer.rows))


def previous_actions(spec: BehaviorSpec, buffer: RolloutBuffer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features [N, P] of the action before each row, and [K, P] of the last action of each trajectory."""
    lengths = buffer.trajectories["lengths"]
    last = np.cumsum(lengths) - 1
    taken = taken_actions(spec, buffer)
    before = np.empty_like(taken)
    before[1:] = taken[:-1]
    before[last - lengths + 1] = _features(spec, *drawn_actions(spec, buffer.trajectories, "previous_"))
    return before, taken[last]


class BufferTransitions:
    """The rows of a buffer as reward signals take them: not normalised, with what was observed after each.

    Args:
        spec: observations and actions.
        layout: how the buffer keeps observations.
        buffer: full; it must not change meanwhile.
        device: where signals compute.
    """

    def __init__(self, spec: BehaviorSpec, layout: ObservationLayout, buffer: RolloutBuffer, device: str) -> None:
        rows, trajectories = buffer.rows, buffer.trajectories
        self._device = device
        self._observations = layout.from_columns(rows.columns())
        self._finals = layout.from_columns(trajectories.columns(), "next_")
        lengths = trajectories["lengths"]
        self._trajectory = np.full(len(rows), -1, np.int64)  # of which a row is the last one
        self._trajectory[np.cumsum(lengths) - 1] = np.arange(len(lengths))
        drawn, choices = drawn_actions(spec, rows)
        self._continuous = environment_actions(spec.actions, drawn, squashed=False)
        self._choices = choices.astype(np.int64)
        self._rewards = rows["rewards"]
        self._ended = trajectories["terminated"]

    def __len__(self) -> int:
        return len(self._rewards)

    def take(self, rows: NDArray[np.int64]) -> Transitions:
        """Some of the transitions."""
        trajectory = self._trajectory[rows]
        last = np.flatnonzero(trajectory >= 0)
        finals = trajectory[last]
        terminated = np.zeros(len(rows), np.float32)
        terminated[last] = self._ended[finals]
        following = np.minimum(rows + 1, len(self) - 1)
        next_arrays = []
        for row, final in zip(_arrays(self._observations), _arrays(self._finals), strict=True):
            array = row[following]
            array[last] = final[finals]
            next_arrays.append(array)
        vectors, *others = next_arrays
        here, *seen = (array[rows] for array in _arrays(self._observations))
        return Transitions(
            Inputs.of(Encoded(here, tuple(seen)), self._device),
            Inputs.of(Encoded(vectors, tuple(others)), self._device),
            *(
                torch.from_numpy(array).to(self._device)
                for array in (self._continuous[rows], self._choices[rows], self._rewards[rows], terminated)
            ),
        )


def _arrays(encoded: Encoded) -> tuple[Array, ...]:
    return (encoded.vectors, *encoded.others)


def _features(spec: BehaviorSpec, drawn: NDArray[np.float32], choices: Array) -> NDArray[np.float32]:
    return action_features(spec.actions, environment_actions(spec.actions, drawn, squashed=False), choices)
