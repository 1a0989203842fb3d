"""Reads demonstrations from Minari data sets (https://minari.farama.org), Gymnasium's format for recorded episodes.

Supported data sets have vector observations (a Box with at most one axis) and Box, Discrete or MultiDiscrete actions.
The data sets must already be on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.action_units import box_units
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations

if TYPE_CHECKING:
    from gymnasium import Space

PREFIX = "minari:"
"""The prefix of a `demo_path` that names a Minari data set."""


def read_minari(path: str, behavior: str) -> Demonstrations:
    """Read the episodes of the data set that a `demo_path` names; the spec gets the behaviour's name.

    Raises:
        StageError: if minari, or a package that it needs to read files, is not installed; if the data set is not on
            this machine or is empty; or if its spaces are not supported.
    """
    where, dataset_id = f"behaviors.{behavior}: demo_path '{path}'", path.removeprefix(PREFIX)
    try:
        dataset = import_module("minari").load_dataset(dataset_id)
    except ImportError as error:  # packages that read files are a separate extra
        raise StageError(
            f'{where}: Minari or one of its extras is not installed; run: pip install "minari[hdf5,hf]"'
        ) from error
    except FileNotFoundError as error:
        raise StageError(
            f"{where}: the dataset is not on this machine; download it first: minari download {dataset_id}"
        ) from error
    return demonstrations_of(
        dataset.observation_space, dataset.action_space, dataset.iterate_episodes(), behavior, where
    )


def demonstrations_of(
    observation_space: Space[Any], action_space: Space[Any], episodes: Iterable[Any], behavior: str, where: str
) -> Demonstrations:
    """Convert Minari episodes, which have T steps and T + 1 observations.

    Args:
        observation_space: the space of a step's observation.
        action_space: the space of a step's action.
        episodes: as returned by `MinariDataset.iterate_episodes`.
        behavior: the behaviour's name.
        where: the key in the YAML, for messages.

    Raises:
        StageError: if there is no episode, or a space is not supported.
    """
    from gymnasium import spaces

    if not (isinstance(observation_space, spaces.Box) and len(observation_space.shape) < 2):
        raise StageError(
            f"{where}: its observation space is {observation_space}; Headrace only reads one-dimensional Box spaces"
        )
    whole = [episode for episode in episodes if len(episode.rewards)]
    if not whole:
        raise StageError(f"{where}: the dataset has no steps")
    size = int(np.prod(observation_space.shape))
    observed = [np.asarray(episode.observations, np.float32).reshape(-1, size) for episode in whole]
    drawn = np.concatenate([np.asarray(episode.actions) for episode in whole])
    actions, continuous, choices = _decided(action_space, drawn, where)
    return Demonstrations(
        BehaviorSpec(behavior, (ObservationSpec("observation", (size,)),), actions),
        (np.concatenate([rows[:-1] for rows in observed]),),
        (np.stack([rows[-1] for rows in observed]),),
        continuous,
        choices,
        np.concatenate([np.asarray(episode.rewards, np.float32) for episode in whole]),
        np.array([len(episode.rewards) for episode in whole], np.int64),
        np.array([bool(episode.terminations[-1]) for episode in whole]),
        np.ones(len(whole), np.bool_),
    )


def _decided(space: Space[Any], drawn: Array, where: str) -> tuple[ActionSpec, NDArray[np.float32], NDArray[np.int64]]:
    """Convert the actions of N steps; return the spec, continuous actions [N, C] and choices [N, branches]."""
    from gymnasium import spaces

    n = len(drawn)
    if isinstance(space, spaces.Box):
        # Scale each bounded dimension from [low, high] to [-1, 1], the inverse of the scaling in environments.
        units = box_units(space.low, space.high)
        half = np.where(units.half, units.half, 1.0)  # an action that has a single possible value
        continuous = ((drawn.reshape(n, -1) - units.middle) / half).astype(np.float32)
        spec = ActionSpec(len(half), unbounded=tuple(np.flatnonzero(~units.scaled).tolist()))
        return spec, continuous, np.empty((n, 0), np.int64)
    if isinstance(space, spaces.Discrete):
        sizes, start = [int(space.n)], np.array([space.start])
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec.ravel().tolist(), np.ravel(space.start)
    else:
        raise StageError(f"{where}: its action space is {space}; Headrace only reads Box, Discrete and MultiDiscrete")
    choices = drawn.reshape(n, len(sizes)).astype(np.int64) - start
    return ActionSpec(discrete_branches=tuple(sizes)), np.empty((n, 0), np.float32), choices
