"""Reads and writes demonstrations in Unity's recording format (`.demo`).

A file contains a single behaviour, with any name. Several agents' steps may be interleaved; each step has its agent's
id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.unity.demo_steps import DemoSteps, read_demo, write_demo
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, within_bounds

log = logging.getLogger(__name__)


def read_unity_demo(path: Path, behavior: str) -> Demonstrations | None:
    """Read the steps in a file, regardless of its behaviour's name; return None if there are no steps.

    A file is a series of (observation, action) pairs. Each pair except an episode's last becomes a step, with the
    reward from the agent's next pair. If no ending was recorded, an agent's last pair only completes the pair before
    it.

    Raises:
        StageError: if the file is not a demonstration, or can't be decoded.
    """
    steps = read_demo(path)
    order = np.argsort(steps.agent_ids, kind="stable")
    ended = steps.ended[order]
    starts, stops = _pieces(steps.agent_ids[order], ended)
    if not len(starts):
        return None
    lengths = stops - starts  # the pairs from `starts` to before `stops`, which only ends the piece
    first_pairs = order[starts]
    by_beginning = np.argsort(first_pairs, kind="stable")
    starts, stops, lengths = starts[by_beginning], stops[by_beginning], lengths[by_beginning]
    rows = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])
    spec = replace(steps.spec, grouped=False)  # teammates are not recorded
    layout = ObservationLayout(spec)
    finals = layout.encode([observation[order[stops]] for observation in steps.observations])
    terminated = ended[stops] & ~steps.interrupted[order[stops]]
    finals.vectors[terminated] = 0.0  # not used
    taken = order[rows]
    return Demonstrations(
        spec,
        layout.encode([observation[taken] for observation in steps.observations]),
        finals,
        within_bounds(steps.continuous[taken], path),
        steps.discrete[taken].astype(np.int64),
        steps.rewards[order[rows + 1]],
        lengths,
        terminated,
        np.ones(len(lengths), np.bool_),
        None if steps.action_masks is None else steps.action_masks[taken],
    )


def write_unity_demo(path: Path, demonstrations: Demonstrations, name: str) -> None:
    """Write demonstrations to a new file; `read_unity_demo` returns the same steps.

    An episode's pieces are merged. An episode that did not terminate is marked as interrupted, whether a time limit or
    the end of the recording cut it short.

    Raises:
        StageError: if there are unbounded continuous actions, which the format can't describe, or if the file already
            exists or can't be written.
    """
    spec = demonstrations.spec
    if spec.actions.unbounded:
        raise StageError(
            f"{path}: {spec.name} has continuous actions without bounds ({list(spec.actions.unbounded)}), but .demo "
            "files can only hold actions in [-1, 1]; give the environment's action space finite bounds"
        )
    write_demo(path, _as_pairs(demonstrations), name)


def as_observed(demonstrations: Demonstrations, spec: BehaviorSpec, file: str) -> Demonstrations:
    """Convert images to the form that the behaviour observes: bytes or floats from 0 to 1, channels first or last.

    Unity sends images as PNG or as floats; a recording may have the other form.

    Raises:
        StageError: if floats to be converted to bytes are not between 0 and 1.
    """
    specs = list(demonstrations.spec.observations)
    if len(specs) != len(spec.observations):
        return demonstrations  # leave these for `check_fit` to reject
    observed, final = list(demonstrations.observations.others), list(demonstrations.final_observations.others)
    for at, index in enumerate(ObservationLayout(demonstrations.spec).others):
        theirs, ours = specs[index], spec.observations[index]
        if theirs.kind == ours.kind and OBSERVATION_KINDS[ours.kind].pixels:
            what = f"{file}: observation {index} ({theirs.name!r})"
            observed[at], final[at] = (_image(images, theirs, ours, what) for images in (observed[at], final[at]))
            specs[index] = replace(
                theirs, shape=observed[at].shape[1:], dtype=ours.dtype, channels_last=ours.channels_last
            )
    return replace(
        demonstrations,
        spec=replace(demonstrations.spec, observations=tuple(specs)),
        observations=replace(demonstrations.observations, others=tuple(observed)),
        final_observations=replace(demonstrations.final_observations, others=tuple(final)),
    )


def _pieces(agent_ids: NDArray[np.int32], ended: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and last pair of each episode with at least one step, from pairs sorted by agent and time."""
    last = ended.copy()
    last[:-1] |= agent_ids[1:] != agent_ids[:-1]
    last[-1] = True
    stops = np.flatnonzero(last)
    starts = np.append(0, stops[:-1] + 1)
    some = stops > starts
    return starts[some], stops[some]


def _image(values: Array, theirs: ObservationSpec, ours: ObservationSpec, what: str) -> Array:
    if theirs.channels_last != ours.channels_last:
        values = np.moveaxis(values, -1, 1) if theirs.channels_last else np.moveaxis(values, 1, -1)
    if values.dtype == ours.dtype:
        return values
    if ours.dtype != "uint8":
        return (values / np.float32(255) if values.dtype == np.uint8 else values).astype(ours.dtype)
    if not ((values >= 0) & (values <= 1)).all():
        raise StageError(
            f"{what}: recorded as floats from {values.min()} to {values.max()}, but the behaviour observes bytes; "
            "expected floats from 0 to 1; set the sensor's compression back to what it was when this file was recorded"
        )
    whole: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return whole


def _as_pairs(demonstrations: Demonstrations) -> DemoSteps:
    """Convert steps to pairs: each episode's steps, followed by a pair that ends the episode."""
    spec, lengths = demonstrations.spec, demonstrations.episode_lengths
    last = np.append(np.flatnonzero(demonstrations.starts_episode)[1:], len(demonstrations.lengths)) - 1
    ends = np.cumsum(lengths + 1) - 1
    pairs = len(demonstrations) + len(lengths)
    ended = np.zeros(pairs, np.bool_)
    ended[ends] = True
    interrupted = np.zeros(pairs, np.bool_)
    interrupted[ends] = ~demonstrations.terminated[last]
    acts = np.flatnonzero(~ended)

    def spread(values: Array, default: float = 0) -> Array:
        """Return an array with these values for steps, and `default` for the pairs that end episodes."""
        result = np.full((pairs, *values.shape[1:]), default, values.dtype)
        result[acts] = values
        return result

    rewards = np.zeros(pairs, np.float32)
    rewards[acts + 1] = demonstrations.rewards
    observations = []
    for values, finals in _by_observation(demonstrations):
        whole = spread(values)
        whole[ends] = finals[last]
        observations.append(whole)
    actions = spec.actions
    masks = None
    if actions.discrete_branches:
        given = demonstrations.masks
        masks = spread(np.ones((len(demonstrations), actions.mask_size), np.bool_) if given is None else given, True)
    return DemoSteps(
        replace(spec, observations=tuple(_as_unity_has_it(observation) for observation in spec.observations)),
        tuple(observations),
        rewards,
        ended,
        interrupted,
        np.repeat(np.arange(len(lengths), dtype=np.int32), lengths + 1),
        spread(demonstrations.continuous),
        spread(demonstrations.choices.astype(np.int32)),
        masks,
        np.zeros(pairs, np.int32),
        np.zeros(pairs, np.float32),
    )


def _by_observation(demonstrations: Demonstrations) -> Iterator[tuple[Array, Array]]:
    """Yield each observation's values [N, *shape] and final values [K, *shape], images with channels first."""
    layout = ObservationLayout(demonstrations.spec)
    both = (
        layout.decode(layout_rows) for layout_rows in (demonstrations.observations, demonstrations.final_observations)
    )
    for spec, *pair in zip(demonstrations.spec.observations, *both, strict=True):
        values, finals = (rows.reshape(len(rows), *(spec.shape or (1,))) for rows in pair)
        if spec.channels_last:
            values, finals = np.moveaxis(values, -1, 1), np.moveaxis(finals, -1, 1)
        yield (values, finals) if _is_bytes(spec) else (values.astype(np.float32), finals.astype(np.float32))


def _as_unity_has_it(spec: ObservationSpec) -> ObservationSpec:
    shape = spec.shape or (1,)
    if spec.channels_last:
        shape = (spec.shape[2], *spec.shape[:2])
    return replace(spec, shape=shape, dtype="uint8" if _is_bytes(spec) else "float32", channels_last=False)


def _is_bytes(spec: ObservationSpec) -> bool:
    return OBSERVATION_KINDS[spec.kind].pixels and spec.dtype == "uint8"
