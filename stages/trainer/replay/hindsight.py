"""Hindsight experience replay: a replay memory that also returns steps relabelled with different goals.

Andrychowicz et al. (2017), "Hindsight Experience Replay". As in Stable-Baselines3's `HerReplayBuffer`, goals are
replaced when a minibatch is drawn: in n of n + 1 rows, by goals that were achieved in the same episode. The rewards of
these rows are recomputed, but their `terminated` flags do not change. Rows are drawn only from finished episodes.

Axis letters: N rows and K pieces in a batch; B rows in a sample, R of them relabelled; g numbers in a goal.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.hyperparameters import HindsightSettings
from headrace.queues.columns import Column
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.environments.protocol import ACHIEVED_GOAL, DESIRED_GOAL
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.replay.replay_memory import Index, LazyColumn, ReplayedRows, ReplayMemory

log = logging.getLogger(__name__)

_SAME = 1e-4
"""Relative difference up to which rewards count as equal, to allow for rounding."""
_RARE = 1e-3
"""Fraction of steps whose rewards may differ by more than `_SAME`.

Rounding can decide whether a step just reaches a goal.
"""


class HindsightMemory(ReplayMemory):
    """A replay memory that relabels goals.

    The rows of finished episodes have places, which are ascending numbers in the order in which the episodes ended.
    When an episode's first row is overwritten, the episode's places and all earlier places are dropped, so no episode
    is ever partly present.

    Args:
        context: the trainer's context, whose `goal_rewards` are opened here.
        layout: the layout of encoded observations.
        capacity: the number of rows kept.
        settings: which goals to use, and how many.

    Raises:
        StageError: if observations are not those of a goal environment, no environment can compute rewards, or the
            trainer does not learn from single steps.
    """

    def __init__(
        self, context: TrainerContext, layout: ObservationLayout, capacity: int, settings: HindsightSettings
    ) -> None:
        if context.replay_shards or context.settings.network_settings.memory is not None:
            raise StageError(f"{context.behavior}: hindsight does not work with a memory or with pipeline.hosts.replay")
        super().__init__(context.spec, layout, capacity)
        self._behavior = context.behavior
        self._settings = settings
        self._achieved, self._desired = (_columns_of(context, layout, name) for name in (ACHIEVED_GOAL, DESIRED_GOAL))
        size = self._desired.stop - self._desired.start
        if context.goal_rewards is None:
            raise StageError(
                f"{context.behavior}: hindsight needs an environment with compute_reward, which this environment lacks"
            )
        context.goal_rewards.open(size)
        self._compute = context.goal_rewards
        self._rows["place"] = LazyColumn(Column("place", "int64"), capacity)
        self._places = {name: LazyColumn(Column(name, "int64"), capacity) for name in ("row", "begin", "end")}
        self._judged = self._differing = 0
        self._patience = min(capacity, max(1, context.settings.max_steps // 10))
        """Number of steps after which an episode should have ended."""
        self._told: set[str] = set()

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._left, self._taken = 0, 0  # rows are drawn from the places in this range
        # agent → episode, its first row, and the first row and end of each of its stored pieces; not saved, as a
        # resumed run begins new episodes.
        self._begun: dict[int, tuple[int, int, deque[tuple[int, int]]]] = {}

    @property
    def drawable(self) -> int:
        """The number of rows in finished episodes, from which samples are drawn."""
        return self._taken - self._left

    def enough(self, count: int) -> bool:
        """Return True if an episode has finished. One is enough, because rows are drawn with replacement."""
        return self.drawable > 0

    def add(self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> None:
        """Add copies of trajectories to the memory. An episode's rows can be drawn once the episode has ended."""
        first, oldest = self._count, max(0, self._count + batch.num_rows - self.capacity)
        self._leave(oldest)
        super().add(batch, rows, finals)
        self._rows["place"].put(np.arange(first, self._count) % self.capacity, np.full(batch.num_rows, -1))
        ends = first + np.cumsum(batch.lengths, dtype=np.int64)
        columns = (batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], ends - batch.lengths, ends)
        over = (batch.terminated | batch.truncated).tolist()
        for k, (agent, episode, begin, end) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            begun = self._begun.pop(agent, None)
            _, start, pieces = begun if begun is not None and begun[0] == episode else (episode, begin, deque())
            pieces.append((begin, end))
            while pieces and pieces[0][1] <= oldest:
                pieces.popleft()
            if over[k]:
                self._finish(start, pieces, oldest)
            else:
                self._begun[agent] = (episode, start, pieces)
        if not self._taken and self._count >= self._patience:
            self._tell(
                "no episode has ended in %d steps, and with hindsight the trainer learns nothing until one does. "
                "Limit the length of episodes, for instance with environment.max_episode_steps, or remove hindsight.",
                self._count,
            )
        self._begun = {agent: begun for agent, begun in self._begun.items() if agent in self._open}

    def sample(self, count: int, random: np.random.Generator) -> ReplayedRows:
        """Draw rows uniformly, with replacement, from finished episodes, and relabel the first of them.

        At least one episode must have finished.
        """
        places = random.integers(self._left, self._taken, size=count)
        relabelled = places[: count * self._settings.per_transition // (self._settings.per_transition + 1)]
        end = self._places["end"].take(relabelled % self.capacity)
        match self._settings.goals:
            case "future":
                goals = random.integers(relabelled, end)
            case "final":
                goals = end - 1
            case "episode":
                goals = random.integers(self._places["begin"].take(relabelled % self.capacity), end)
        return self.relabelled(places, goals)

    def relabelled(self, places: Index, goals: Index) -> ReplayedRows:
        """Return the rows at `places`; the first R of them get the goals that the rows at `goals` achieved.

        Args:
            places: [B] the places of the rows to return.
            goals: [R] the places of the rows whose achieved goals are used.
        """
        replayed, count = self._gather(self._rows_at(places)), len(goals)
        before, after = replayed.observations.vectors, replayed.next_observations.vectors
        vectors = self.observations.columns[0]
        achieved = vectors.take(self._rows["next_slot"].take(self._rows_at(goals)))[:, self._achieved]
        before[:count, self._desired] = after[:count, self._desired] = achieved
        rewards = self._compute(after[:, self._achieved], before[:, self._desired])
        recorded = replayed.columns["rewards"]
        self._judge(rewards[count:], recorded[count:])
        rewards[count:] = recorded[count:]
        columns = {**replayed.columns, "rewards": rewards}
        return ReplayedRows(replayed.observations, replayed.next_observations, columns)

    def facts(self) -> dict[str, Any]:
        """Return plain values for `restore`, in addition to the columns."""
        return {**super().facts(), "places": [self._left, self._taken]}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        places = min(self._taken, self.capacity)
        return [*super().columns(), *((column, places) for column in self._places.values())]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; places are restored only if the facts were saved with hindsight."""
        super().restore(facts)
        self._left, self._taken = map(int, facts.get("places", (0, 0)))

    def _rows_at(self, places: Index) -> Index:
        """Return the ring indices of the rows at these places."""
        return self._places["row"].take(places % self.capacity) % self.capacity

    def _leave(self, oldest: int) -> None:
        """Drop the places of episodes that have rows before `oldest`."""
        replaced = np.arange(max(0, self._count - self.capacity), oldest)
        places = self._rows["place"].take(replaced % self.capacity)
        places = places[places >= self._left]
        if len(places):
            self._left = int(self._places["end"].take(places % self.capacity).max())

    def _finish(self, start: int, pieces: Iterable[tuple[int, int]], oldest: int) -> None:
        """Give places to those rows of an ended episode that are still stored."""
        if start < oldest:
            self._tell(
                "when an episode ended, its first steps had already left the replay buffer, so the trainer can hardly "
                "use the episode for hindsight; raise hyperparameters.buffer_size (%d), or shorten episodes "
                "(environment.max_episode_steps).",
                self.capacity,
            )
        kept = np.concatenate([np.empty(0, np.int64), *(np.arange(max(row, oldest), end) for row, end in pieces)])
        begin, end = self._taken, self._taken + len(kept)
        places = np.arange(begin, end)
        self._rows["place"].put(kept % self.capacity, places)
        for name, values in (("row", kept), ("begin", np.full(len(kept), begin)), ("end", np.full(len(kept), end))):
            self._places[name].put(places % self.capacity, values)
        self._taken = end

    def _judge(self, rewards: NDArray[np.float32], recorded: Array) -> None:
        """Warn, once, if recorded rewards differ from those of `compute_reward`."""
        differing = np.flatnonzero(np.abs(rewards - recorded) > _SAME * (1.0 + np.abs(recorded)))
        self._judged += len(recorded)
        self._differing += len(differing)
        if len(differing) and self._differing > _RARE * self._judged:
            self._tell(
                "%d of %d checked steps have a reward that differs from what the environment's compute_reward returns "
                "for their own goals, such as %g instead of %g. Steps that hindsight relabels only get what "
                "compute_reward returns: they lose what a wrapper, a stage or the environment adds to the reward.",
                *(self._differing, self._judged, recorded[differing[0]], rewards[differing[0]]),
            )

    def _tell(self, words: str, *numbers: float) -> None:
        if words not in self._told:
            self._told.add(words)
            log.warning("%s: %s", self._behavior, words % numbers)


def _columns_of(context: TrainerContext, layout: ObservationLayout, name: str) -> slice:
    """Return a goal's columns in the vector observations."""
    observations = context.spec.observations
    for index, columns in layout.vectors:
        if observations[index].name == name:
            return columns
    names = ", ".join(f"{observation.name} ({observation.kind})" for observation in observations)
    raise StageError(
        f"{context.behavior}: hindsight needs vectors {ACHIEVED_GOAL} and {DESIRED_GOAL}, as goal environments have; "
        f"{name} is not among the vectors of: {names}. Remove hindsight, or make the observation space a Dict with both"
    )
