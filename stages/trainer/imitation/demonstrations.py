"""Demonstrations: an expert's recorded steps, in a form that is the same for all file formats, and their checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """N steps in K concatenated trajectories, with one row per step, in order."""

    spec: BehaviorSpec
    observations: tuple[Array, ...]
    """One array [N, *shape] per observation of the spec, without normalisation."""
    final_observations: tuple[Array, ...]
    """One array [K, *shape] per observation: the one after the last step of each trajectory."""
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

    @property
    def last_trajectories(self) -> NDArray[np.int64]:
        """[E] the index of each episode's last trajectory."""
        return np.append(np.flatnonzero(self.starts_episode)[1:], len(self.lengths)) - 1


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Concatenate demonstrations with the same spec, in order."""
    if len(parts) == 1:
        return parts[0]
    masks = None
    if any(part.masks is not None for part in parts):
        size = parts[0].spec.actions.mask_size
        masks = np.concatenate([np.ones((len(p), size), np.bool_) if p.masks is None else p.masks for p in parts])
    columns: dict[str, Any] = {}
    for name in ("continuous", "choices", "rewards", "lengths", "terminated", "starts_episode"):
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    for name in ("observations", "final_observations"):
        columns[name] = tuple(map(np.concatenate, zip(*(getattr(part, name) for part in parts), strict=True)))
    return replace(parts[0], masks=masks, **columns)


def rows_between(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row indices from each start to before its stop, concatenated."""
    return np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])


# Checks that demonstrations fit the behaviour that learns from them, and that their values are valid.

_FINITE = "demonstrations need finite numbers"
_ROUNDING = 1e-4
"""Tolerance for actions beyond -1 or 1, which result from rounding in formats with few digits and in scaling by
bounds."""


def checked(demonstrations: Demonstrations, spec: BehaviorSpec, file: str) -> Demonstrations:
    """Return demonstrations with the spec and the dtypes of the behaviour that learns from them.

    Actions are clipped to [-1, 1]. The observations after terminated episodes, which nothing uses, become zeros.

    Args:
        demonstrations: the recorded steps.
        spec: the learning behaviour's spec. Names and the dtypes of vectors may differ from those recorded.
        file: the file name used in messages.

    Raises:
        StageError: if an observation or the actions have a different form, a number is NaN or infinite, or a choice or
            action is out of range; the message gives both forms, or trajectory, step and column of the first number.
    """
    _check_fit(demonstrations.spec, spec, file)
    continuous, lengths = demonstrations.continuous, demonstrations.lengths
    observations, finals = [], []
    for seen, rows, ends in zip(
        spec.observations, demonstrations.observations, demonstrations.final_observations, strict=True
    ):
        observed, final = rows.astype(seen.dtype, copy=False), ends.astype(seen.dtype)
        final[demonstrations.terminated] = 0  # diverged simulators return NaN there
        reject(file, seen.name, observed, ~np.isfinite(observed), _FINITE, lengths)
        reject(file, seen.name, final, ~np.isfinite(final), _FINITE)
        observations.append(observed)
        finals.append(final)
    for name, column in (("continuous_actions", continuous), ("rewards", demonstrations.rewards)):
        reject(file, name, column, ~np.isfinite(column), _FINITE, lengths)
    for branch, size in enumerate(spec.actions.discrete_branches):
        choices, expected = demonstrations.choices[:, branch], f"expected a choice of 0 to {size - 1}"
        reject(file, f"discrete_actions[{branch}]", choices, (choices < 0) | (choices >= size), expected, lengths)
    unbounded = list(spec.actions.unbounded)
    beyond = np.abs(continuous) > 1.0 + _ROUNDING
    beyond[:, unbounded] = False
    expected = "expected a number in [-1, 1]; scale the actions to the environment's bounds"
    reject(file, "continuous_actions", continuous, beyond, expected, lengths)
    clipped = continuous.clip(-1.0, 1.0)
    clipped[:, unbounded] = continuous[:, unbounded]
    return replace(
        demonstrations,
        spec=spec,
        observations=tuple(observations),
        final_observations=tuple(finals),
        continuous=clipped,
    )


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


def reject(
    file: str, name: str, column: Array, bad: Array, expected: str, lengths: NDArray[np.int64] | None = None
) -> None:
    """Raise a `StageError` that locates the first number of a column for which `bad` is true, if there is one.

    `lengths` are the trajectories' numbers of rows; None if the column has a row for each trajectory's end.
    """
    if not bad.any():
        return
    row, *inner = np.argwhere(bad)[0].tolist()
    place = f"trajectory {row + 1}, after its last step"
    if lengths is not None:
        ends = np.cumsum(lengths)
        trajectory = int(np.searchsorted(ends, row, side="right"))
        place = f"trajectory {trajectory + 1}, step {row - (ends - lengths)[trajectory] + 1}"
    raise StageError(f"{file}: {place}: {name}{inner or ''} is {column[(row, *inner)]}; {expected}")


def _check_fit(recorded: BehaviorSpec, expected: BehaviorSpec, file: str) -> None:
    ObservationLayout(recorded)  # rejects observations that no network can take
    for (_, theirs), (what, ours) in zip(_forms(recorded), _forms(expected), strict=False):
        if theirs != ours:
            raise StageError(
                f"{file}: demonstrations of {recorded.behavior_id} do not fit {expected.behavior_id}: {what}: expected "
                f"{ours}, found {theirs}; were they recorded in a different environment, or in a different version of "
                "this one?"
            )


def _forms(spec: BehaviorSpec) -> Iterator[tuple[str, str]]:
    """Yield the name and the form of each part that must be the same, in words."""
    yield "the number of observations", str(len(spec.observations))
    for index, observation in enumerate(spec.observations):
        yield f"observation {index} ({observation.name!r})", _form(observation)
    actions = spec.actions
    unbounded = f", unbounded {list(actions.unbounded)}" if actions.unbounded else ""
    branches = list(actions.discrete_branches)
    yield "actions", f"{actions.continuous_size} continuous{unbounded}, discrete branches {branches}"


def _form(spec: ObservationSpec) -> str:
    kind = OBSERVATION_KINDS[spec.kind]
    if kind.flat:  # networks take vectors as floats, regardless of their dtype
        return f"shape {spec.shape}"
    dtype = "floats" if np.dtype(spec.dtype).kind == "f" else spec.dtype
    return f"shape {spec.shape} of {dtype}{', channels last' if kind.pixels and spec.channels_last else ''}"
