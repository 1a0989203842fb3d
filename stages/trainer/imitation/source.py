"""The demonstration source, which replaces actors and sends demonstrations to trainers that only imitate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import TRAJECTORY_COLUMNS
from headrace.queues.messages import Array, Message, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.sampling import policy_actions
from headrace.stages.stage import Source, StageContext
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, rows_between
from headrace.stages.trainer.imitation.loading import load_demonstrations


# The source replaces an actor, so imitation needs no separate path to the trainer (docs/decisions/043).
class DemonstrationSource(Source[Message]):
    """Yields demonstrated episodes, repeating them until stopped and alternating between behaviours.

    Args:
        paths: the `demo_path` of each behaviour, keyed by behaviour name.
        rows_per_batch: the maximum number of steps in a batch.
        folder: the YAML's folder, the base for relative paths.
        seen: per behaviour name, the number of steps that a resumed trainer has already received. The source therefore
            has no state to save.

    Attributes:
        specs: the environments' specs, keyed by behaviour name, for demonstrations that contain no spec. The owner sets
            them before `start`.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        rows_per_batch: int,
        folder: Path | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> None:
        self._paths = paths
        self._rows_per_batch = rows_per_batch
        self._folder = folder
        self._seen = seen or {}
        self.specs: Mapping[str, BehaviorSpec] = {}
        self._feeds: list[Iterator[TrajectoryBatch]] = []
        self._stopping = False
        self.behavior_specs: dict[str, BehaviorSpec] = {}
        """Specs keyed by behaviour id; complete after `start`."""

    def start(self, context: StageContext) -> None:
        """Read all demonstrations.

        Raises:
            StageError: if there are no demonstrations, or the behaviour can't learn from them.
            StreamError: if a `.stream` file is not a stream file.
        """
        demonstrations = [
            load_demonstrations(path, self.specs.get(name, name), self._folder) for name, path in self._paths.items()
        ]
        self.behavior_specs = {recorded.spec.behavior_id: recorded.spec for recorded in demonstrations}
        self._feeds = [
            demonstration_batches(recorded, self._rows_per_batch, context.seed, self._seen.get(recorded.spec.name, 0))
            for recorded in demonstrations
        ]

    async def produce(self) -> AsyncIterator[Message]:
        """Yield batches until stopped; yield nothing if there are no demonstrations."""
        while self._feeds:
            for feed in self._feeds:
                if self._stopping:
                    return
                yield next(feed)
                await asyncio.sleep(0)  # making batches never waits, so give the host's other stages a turn

    def request_stop(self) -> None:
        """Stop after the current batch."""
        self._stopping = True


def demonstration_batches(
    demonstrations: Demonstrations, rows_per_batch: int, seed: int, seen: int = 0
) -> Iterator[TrajectoryBatch]:
    """Yield batches endlessly, repeating all episodes; each round has a new random order.

    An episode has the same id in every round, so a trainer can hold it out. Only episodes longer than a batch are cut;
    shorter ones share batches. Actions are in the form that a plain Gaussian policy draws (`squashed=False`).

    A round's order depends only on the seed and the round's number, so the sequence can be resumed at any batch.

    Args:
        demonstrations: the episodes.
        rows_per_batch: the maximum number of steps in a batch.
        seed: the seed of the random orders.
        seen: the number of steps to skip at the beginning, in complete batches.

    Raises:
        ValueError: if `rows_per_batch` is less than 1.
    """
    if rows_per_batch < 1:
        raise ValueError(f"rows_per_batch: expected at least 1, got {rows_per_batch}")
    feeder = _Feeder(demonstrations)
    lengths = demonstrations.episode_lengths
    first, left_out = divmod(seen, len(demonstrations))
    for number in count(first):
        order = np.random.default_rng((seed, number)).permutation(len(lengths))
        for pieces in _packed(order, lengths, rows_per_batch):
            if left_out > 0:
                left_out -= sum(stop - start for _, start, stop in pieces)
            else:
                yield feeder.batch(pieces)


def _packed(
    order: NDArray[np.int64], lengths: NDArray[np.int64], rows_per_batch: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Yield lists of (episode, first step, end), each list with at most `rows_per_batch` steps in total."""
    gathered: list[tuple[int, int, int]] = []
    rows = 0
    for episode in order.tolist():
        length = int(lengths[episode])
        for start in range(0, length, rows_per_batch):
            stop = min(start + rows_per_batch, length)
            if gathered and rows + stop - start > rows_per_batch:
                yield gathered
                gathered, rows = [], 0
            gathered.append((episode, start, stop))
            rows += stop - start
    yield gathered


class _Feeder:
    def __init__(self, demonstrations: Demonstrations) -> None:
        spec, actions, n = demonstrations.spec, demonstrations.spec.actions, len(demonstrations)
        self._demonstrations = demonstrations
        self._made = 0
        self._lengths, self._starts = demonstrations.episode_lengths, demonstrations.episode_starts
        self._last = demonstrations.last_trajectories
        self._actions: dict[str, Array] = {}
        if actions.continuous_size:
            self._actions["continuous_actions"] = policy_actions(actions, demonstrations.continuous, squashed=False)
        if actions.discrete_branches:
            self._actions["discrete_actions"] = demonstrations.choices.astype(np.int32)
        self._rows = {f"obs_{index}": array for index, array in enumerate(demonstrations.observations)}
        self._rows |= {**self._actions, "rewards": demonstrations.rewards}
        self._rows["log_probs"] = np.zeros((n, actions.log_prob_size), np.float32)  # unknown
        if actions.masked:
            masks = demonstrations.masks
            self._rows["action_masks"] = np.ones((n, actions.mask_size), np.bool_) if masks is None else masks
        if spec.action_repeat:
            self._rows["env_frames"] = np.ones(n, np.int32)  # unknown

    def batch(self, pieces: list[tuple[int, int, int]]) -> TrajectoryBatch:
        """Return a batch like those of the agent processor, as if one agent had played all episodes."""
        episodes, starts, stops = np.array(pieces, np.int64).T
        first = self._starts[episodes]
        which = rows_between(first + starts, first + stops)
        rows = {name: column[which] for name, column in self._rows.items()}
        demonstrations, k = self._demonstrations, len(pieces)
        last, ends = self._last[episodes], stops == self._lengths[episodes]
        terminated = ends & demonstrations.terminated[last]
        columns: dict[str, Array] = {column.name: np.zeros(k, column.dtype) for column in TRAJECTORY_COLUMNS}
        columns |= {
            "lengths": (stops - starts).astype(np.int32),
            "episode_ids": episodes,
            "terminated": terminated,
            "truncated": ends & ~terminated,
            "learning": np.ones(k, np.bool_),
            "opponent": np.full(k, -1, np.int32),
            "numbers": np.arange(self._made, self._made + k, dtype=np.int64),
        }
        after = first + np.where(ends, 0, stops)
        observed = zip(demonstrations.observations, demonstrations.final_observations, strict=True)
        for index, (values, finals) in enumerate(observed):
            columns[f"next_obs_{index}"] = following = values[after]
            following[ends] = finals[last[ends]]
        for name, array in self._actions.items():
            columns[f"previous_{name}"] = previous = array[first + starts - 1]
            previous[starts == 0] = 0
        self._made += k
        return TrajectoryBatch(demonstrations.spec.behavior_id, 0, rows, columns)
