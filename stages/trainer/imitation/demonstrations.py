"""Demonstrations: an expert's recorded steps, in a form that is the same for all file formats."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """N steps in K concatenated trajectories, with one row per step, in order."""

    spec: BehaviorSpec
    observations: EncodedObservations
    """[N, …] the expert's observations, without normalisation."""
    final_observations: EncodedObservations
    """[K, …] the expert's observation after the last step of each trajectory."""
    continuous: NDArray[np.float32]
    """[N, C] actions as the environment received them: between -1 and 1 if bounded."""
    choices: NDArray[np.int64]
    """[N, branches] the index of the choice in each branch."""
    rewards: NDArray[np.float32]
    """[N] the reward for each step."""
    lengths: NDArray[np.int64]
    """[K] the number of rows of each trajectory."""
    terminated: NDArray[np.bool_]
    """[K] true if the trajectory ended according to the task's own rules."""
    starts_episode: NDArray[np.bool_]
    """[K] true if the trajectory begins an episode, rather than continuing the previous trajectory."""
    masks: NDArray[np.bool_] | None = None
    """[N, choices] true for allowed choices; None if all choices were allowed, or if that is unknown."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """[E] the number of rows of each episode, where trajectories that continue each other count as one episode."""
        return np.add.reduceat(self.lengths, np.flatnonzero(self.starts_episode))

    @property
    def episode_starts(self) -> NDArray[np.int64]:
        """[E] the first row of each episode."""
        lengths = self.episode_lengths
        return np.cumsum(lengths) - lengths


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Concatenate demonstrations with the same spec, in order."""
    if len(parts) == 1:
        return parts[0]
    masks = None
    if any(part.masks is not None for part in parts):
        size = parts[0].spec.actions.mask_size
        masks = np.concatenate([np.ones((len(p), size), np.bool_) if p.masks is None else p.masks for p in parts])
    return Demonstrations(
        parts[0].spec,
        _stacked([part.observations for part in parts]),
        _stacked([part.final_observations for part in parts]),
        np.concatenate([part.continuous for part in parts]),
        np.concatenate([part.choices for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.terminated for part in parts]),
        np.concatenate([part.starts_episode for part in parts]),
        masks,
    )


def _stacked(parts: Sequence[EncodedObservations]) -> EncodedObservations:
    others = zip(*(part.others for part in parts), strict=True)
    return EncodedObservations(
        np.concatenate([part.vectors for part in parts]), tuple(np.concatenate(arrays) for arrays in others)
    )


# Checks that demonstrations fit the behaviour that learns from them, and that their values are valid.

log = logging.getLogger(__name__)

_ROUNDING = 1e-4
"""Tolerance for actions beyond -1 or 1, which result from rounding in formats with few digits and in scaling by
bounds."""


def check_fit(recorded: BehaviorSpec, expected: BehaviorSpec, file: str) -> None:
    """Reject demonstrations whose observations or actions differ from the expected ones; names may differ.

    `file` is the file name used in messages.

    Raises:
        StageError: if an observation or action differs; the message names it, with the expected value and the one
            found.
    """
    difference = _difference(recorded, expected)
    if difference is not None:
        raise StageError(
            f"{file}: demonstrations of {recorded.behavior_id} do not fit {expected.behavior_id}: {difference}; were "
            "they recorded in a different environment, or in a different version of this one?"
        )


def checked(demonstrations: Demonstrations, file: str) -> Demonstrations:
    """Return the demonstrations, with actions clipped to [-1, 1].

    Raises:
        StageError: if a number is NaN or infinite, or a choice or action is out of range; the message gives trajectory,
            step and column of the first one.
    """
    for name, column in _columns(demonstrations):
        if not np.isfinite(column).all():
            row, inner = _first(~np.isfinite(column))
            where = _at(demonstrations, row, inner, name)
            raise StageError(f"{file}: {where} is {column[row][inner]}; demonstrations need finite numbers")
    for name, column in _final_columns(demonstrations):
        bad = ~np.isfinite(column) & ~demonstrations.terminated.reshape(-1, *[1] * (column.ndim - 1))
        if bad.any():
            row, inner = _first(bad)
            raise StageError(
                f"{file}: trajectory {row + 1}, after its last step: {name}{_index(inner)} is {column[row][inner]}; "
                "demonstrations need finite numbers"
            )
    _check_choices(demonstrations, file)
    return _bounded(demonstrations, file)


def within_bounds(continuous: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """Return recorded actions clipped to [-1, 1]; if any is outside, log a warning that names the file `path`."""
    beyond = np.abs(continuous) > 1.0  # false for NaN, which a later check reports
    if not beyond.any():
        return continuous
    log.warning(
        "%s: %d of %d steps have continuous actions outside [-1, 1], the largest %.3g; a policy can't produce such "
        "actions, so Headrace clips them",
        *(path, int(beyond.any(axis=1).sum()), len(continuous), np.abs(continuous[beyond]).max()),
    )
    return continuous.clip(-1.0, 1.0)


def _difference(recorded: BehaviorSpec, expected: BehaviorSpec) -> str | None:
    if len(recorded.observations) != len(expected.observations):
        return f"expected {_format_all(expected.observations)}, found {_format_all(recorded.observations)}"
    for index, (theirs, ours) in enumerate(zip(recorded.observations, expected.observations, strict=True)):
        if _form(theirs) != _form(ours):
            return f"observation {index} ({ours.name!r}): expected {_format(ours)}, found {_format(theirs)}"
    if _action_form(recorded.actions) != _action_form(expected.actions):
        return f"actions: expected {_format_actions(expected.actions)}, found {_format_actions(recorded.actions)}"
    return None


def _form(spec: ObservationSpec) -> tuple[object, ...]:
    kind = OBSERVATION_KINDS[spec.kind]
    # Flat observations become float32 regardless of their dtype; for images and sets, bytes and floats are scaled
    # differently.
    return spec.shape, None if kind.flat else np.dtype(spec.dtype).kind, kind.pixels and spec.channels_last


def _action_form(spec: ActionSpec) -> tuple[object, ...]:
    return spec.continuous_size, spec.discrete_branches, tuple(sorted(spec.unbounded))


def _format(spec: ObservationSpec) -> str:
    return f"shape {spec.shape} of {spec.dtype}{', channels last' if spec.channels_last else ''}"


def _format_all(observations: tuple[ObservationSpec, ...]) -> str:
    return f"{len(observations)} observations ({'; '.join(_format(observation) for observation in observations)})"


def _format_actions(spec: ActionSpec) -> str:
    unbounded = f", unbounded {list(spec.unbounded)}" if spec.unbounded else ""
    return f"{spec.continuous_size} continuous{unbounded}, discrete branches {list(spec.discrete_branches)}"


def _columns(demonstrations: Demonstrations) -> Iterator[tuple[str, Array]]:
    layout, observations = ObservationLayout(demonstrations.spec), demonstrations.observations
    for index, columns in layout.vectors:
        yield demonstrations.spec.observations[index].name, observations.vectors[:, columns]
    for index, other in zip(layout.others, observations.others, strict=True):
        yield demonstrations.spec.observations[index].name, other
    yield "continuous_actions", demonstrations.continuous
    yield "rewards", demonstrations.rewards


def _final_columns(demonstrations: Demonstrations) -> Iterator[tuple[str, Array]]:
    for name, column in _columns(replace(demonstrations, observations=demonstrations.final_observations)):
        if name not in ("continuous_actions", "rewards"):
            yield name, column


def _check_choices(demonstrations: Demonstrations, file: str) -> None:
    branches = np.array(demonstrations.spec.actions.discrete_branches)
    bad = (demonstrations.choices < 0) | (demonstrations.choices >= branches)
    if bad.any():
        row, (branch,) = _first(bad)
        where = _at(demonstrations, row, (branch,), "discrete_actions")
        raise StageError(
            f"{file}: {where} is {demonstrations.choices[row, branch]}; "
            f"expected a choice of 0 to {branches[branch] - 1}"
        )


def _bounded(demonstrations: Demonstrations, file: str) -> Demonstrations:
    actions = demonstrations.spec.actions
    bounded = np.setdiff1d(np.arange(actions.continuous_size), actions.unbounded)
    given = demonstrations.continuous[:, bounded]
    bad = np.abs(given) > 1.0 + _ROUNDING
    if bad.any():
        row, (column,) = _first(bad)
        where = _at(demonstrations, row, (int(bounded[column]),), "continuous_actions")
        raise StageError(
            f"{file}: {where} is {given[row, column]}; expected a number in [-1, 1]; "
            "scale the actions to the environment's bounds"
        )
    continuous = demonstrations.continuous.copy()
    continuous[:, bounded] = given.clip(-1.0, 1.0)
    return replace(demonstrations, continuous=continuous)


def _first(bad: Array) -> tuple[int, tuple[int, ...]]:
    """Return the row of the first true element, and its index within the row."""
    row, *inner = (int(i) for i in np.argwhere(bad)[0])
    return row, tuple(inner)


def _at(demonstrations: Demonstrations, row: int, inner: tuple[int, ...], name: str) -> str:
    ends = np.cumsum(demonstrations.lengths)
    trajectory = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[trajectory] - demonstrations.lengths[trajectory])
    return f"trajectory {trajectory + 1}, step {step + 1}: {name}{_index(inner)}"


def _index(inner: tuple[int, ...]) -> str:
    return f"[{', '.join(str(i) for i in inner)}]" if inner else ""
