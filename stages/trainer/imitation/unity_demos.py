"""Reads and writes demonstrations in Unity's recording format (`.demo`).

A file contains a single behaviour, with any name. Several agents' steps may be interleaved; each step has its agent's
id.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.unity.demo_steps import DemoSteps, read_demo, write_demo
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, rows_between, within_bounds


def read_unity_demo(path: Path, behavior: str, wanted: BehaviorSpec | None = None) -> Demonstrations | None:
    """Read the steps in a file, regardless of its behaviour's name; return None if there are no steps.

    A file is a series of (observation, action) pairs. Each pair except an episode's last becomes a step, with the
    reward from the agent's next pair. If no ending was recorded, an agent's last pair only completes the pair before
    it.

    Args:
        path: the file's path.
        behavior: not used, because a file has a single behaviour.
        wanted: the spec of the behaviour that learns from the file. Images are converted to the form that it observes:
            bytes or floats from 0 to 1, channels first or last. Unity sends images as PNG or as floats; a recording may
            have the other form.

    Raises:
        StageError: if the file is not a demonstration, or can't be decoded; or if floats to be converted to bytes are
            not between 0 and 1.
    """
    steps = read_demo(path)
    order = np.argsort(steps.agent_ids, kind="stable")
    agents, ended = steps.agent_ids[order], steps.ended[order]
    last = ended | np.append(np.diff(agents) != 0, True)  # an episode's, or a recording's, last pair of an agent
    stops = np.flatnonzero(last)
    starts = np.append(0, stops[:-1] + 1)
    some = np.flatnonzero(stops > starts)
    if not len(some):
        return None
    some = some[np.argsort(order[starts[some]], kind="stable")]  # in the order in which the episodes began
    starts, stops = starts[some], stops[some]  # the pairs from `starts` to before `stops`, which only ends the piece
    rows = rows_between(starts, stops)
    taken = order[rows]
    observed = [(observation[taken], observation[order[stops]]) for observation in steps.observations]
    specs = list(steps.spec.observations)
    for index, (theirs, ours) in enumerate(zip(specs, wanted.observations if wanted else (), strict=False)):
        if theirs.kind == ours.kind and OBSERVATION_KINDS[ours.kind].pixels:
            what = f"{path}: observation {index} ({theirs.name!r})"
            images, finals = (_image(images, theirs, ours, what) for images in observed[index])
            observed[index] = images, finals
            specs[index] = replace(theirs, shape=images.shape[1:], dtype=ours.dtype, channels_last=ours.channels_last)
    return Demonstrations(
        replace(steps.spec, observations=tuple(specs), grouped=False),  # teammates are not recorded
        tuple(rows for rows, _ in observed),
        tuple(finals for _, finals in observed),
        within_bounds(steps.continuous[taken], path),
        steps.discrete[taken].astype(np.int64),
        steps.rewards[order[rows + 1]],
        stops - starts,
        ended[stops] & ~steps.interrupted[order[stops]],
        np.ones(len(starts), np.bool_),
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
    spec, lengths, last = demonstrations.spec, demonstrations.episode_lengths, demonstrations.last_trajectories
    ends = np.cumsum(lengths + 1) - 1
    pairs = len(demonstrations) + len(lengths)
    ended, interrupted = np.zeros(pairs, np.bool_), np.zeros(pairs, np.bool_)
    ended[ends], interrupted[ends] = True, ~demonstrations.terminated[last]
    acts = np.flatnonzero(~ended)

    def spread(values: Array, default: float = 0) -> Array:
        """Return an array with these values for steps, and `default` for the pairs that end episodes."""
        result = np.full((pairs, *values.shape[1:]), default, values.dtype)
        result[acts] = values
        return result

    rewards = np.zeros(pairs, np.float32)
    rewards[acts + 1] = demonstrations.rewards
    specs, observations = [], []
    for observed, values, finals in zip(
        spec.observations, demonstrations.observations, demonstrations.final_observations, strict=True
    ):
        whole = spread(values)
        whole[ends] = finals[last]
        whole = whole.reshape(pairs, *(observed.shape or (1,)))
        if observed.channels_last:
            whole = np.moveaxis(whole, -1, 1)
        if not (OBSERVATION_KINDS[observed.kind].pixels and observed.dtype == "uint8"):
            whole = whole.astype(np.float32)
        observations.append(whole)
        specs.append(replace(observed, shape=whole.shape[1:], dtype=str(whole.dtype), channels_last=False))
    masks = None
    if spec.actions.discrete_branches:
        given = demonstrations.masks
        size = (len(demonstrations), spec.actions.mask_size)
        masks = spread(np.ones(size, np.bool_) if given is None else given, True)
    return DemoSteps(
        replace(spec, observations=tuple(specs)),
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
