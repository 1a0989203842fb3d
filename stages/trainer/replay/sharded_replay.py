"""A replay memory with its rows in shards, each in a separate host: the trainer's side, and the stages of both sides.

Rows are assigned to shards by episode, so an episode's pieces stay together. How many rows each shard contributes to a
batch is drawn in proportion to the shards' sizes, so every stored row is equally likely. Before an update, `fetch`
requests the batches that the update needs, a few at a time, and waits for them. Messages stay in order, so a batch that
is requested after some rows were sent may contain these rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier, PolicyUpdate, ReplayRequest, ReplaySample, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import BLOCKED
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.stage import Stage
from headrace.stages.trainer.protocol import new_random, random_state, restore_random
from headrace.stages.trainer.replay.replay_memory import ReplayedRows, ReplayMemory, replayed_columns
from headrace.stages.trainer.stage import TrainerStage

AT_ONCE = 64
"""The maximum number of batches in flight."""

ASKS_SIZE = np.array([-1], np.int64)
"""Sent in place of row counts to request a shard's size."""
SIZE = "size"
"""Name of the answer's column with the shard's size."""

_ENDS = ("lengths", "agent_ids", "episode_ids", "terminated", "truncated", "credits")

Outgoing = TrajectoryBatch | ReplayRequest | Barrier


class ShardedReplay:
    """A replay memory in several shards, without sequences.

    Args:
        spec: observations and actions.
        layout: the layout of encoded observations.
        capacity: the number of rows kept by all shards together.
        shards: the number of shards.
    """

    sequence_length = 0

    def __init__(self, spec: BehaviorSpec, layout: ObservationLayout, capacity: int, shards: int) -> None:
        self.outgoing: list[asyncio.Queue[Outgoing]] = [asyncio.Queue() for _ in range(shards)]
        """Outgoing messages for each shard, in order. Callers await `drained` to keep these queues short."""
        self._columns, self._layout = [column.name for column in replayed_columns(spec)], layout
        self._capacity = shard_capacity(capacity, shards)
        self._sizes = np.zeros(shards, np.int64)
        self._known = np.zeros(shards, np.bool_)
        self._answers: list[deque[ReplaySample]] = [deque() for _ in range(shards)]
        self._ready: deque[ReplayedRows] = deque()
        self._arrived = asyncio.Event()
        self._lost = -1

    def __len__(self) -> int:
        return int(self._sizes.sum())

    def enough(self, count: int) -> bool:
        """Return True if the shards hold `count` rows."""
        return len(self) >= count

    @property
    def ready(self) -> int:
        """The number of fetched batches that `sample` can return."""
        return len(self._ready)

    def clear(self) -> None:
        """Do nothing, because each shard restores its own part of a checkpoint."""

    def add(self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> None:
        """Send trajectories to the shards of their episodes."""
        columns = {**{name: batch.rows[name] for name in self._columns}, **self._layout.as_columns(rows)}
        ends = {**{name: batch.trajectories[name] for name in _ENDS}, **self._layout.as_columns(finals, "next_")}
        whole = TrajectoryBatch(batch.behavior_id, batch.source, columns, ends)
        shards = len(self._sizes)
        owner = (batch.trajectories["agent_ids"] + batch.trajectories["episode_ids"]) % shards
        for shard in range(shards):
            part = whole if shards == 1 else whole.select(owner == shard)
            if part.num_rows:
                self.outgoing[shard].put_nowait(part)
                self._sizes[shard] = min(self._capacity, self._sizes[shard] + part.num_rows)

    def save(self, number: int) -> None:
        """Make all shards write their parts of a checkpoint."""
        for queue in self.outgoing:
            queue.put_nowait(Barrier(number))

    async def fetch(self, batches: int, rows: int, random: np.random.Generator) -> None:
        """Request `batches` batches of `rows` rows each, and wait for them.

        Raises:
            QueueClosed: if a shard is lost.
        """
        shares = self._sizes / self._sizes.sum()
        counts = random.multinomial(rows, shares, size=batches).astype(np.int64)
        for shard, queue in enumerate(self.outgoing):
            queue.put_nowait(ReplayRequest(counts[:, shard]))
        for of_batch in counts:
            shards = of_batch.nonzero()[0]
            while not all(self._answers[shard] for shard in shards):
                await self._wait()
            parts = [self._answers[shard].popleft().columns for shard in shards]
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            of_columns = self._layout.from_columns
            self._ready.append(ReplayedRows(of_columns(columns), of_columns(columns, "next_"), columns))

    async def opened(self) -> None:
        """Request every shard's size and wait for the answers.

        Answers that a shard sends before its size were meant for a lost trainer and are ignored.

        Raises:
            QueueClosed: if a shard is lost.
        """
        for queue in self.outgoing:
            queue.put_nowait(ReplayRequest(ASKS_SIZE))
        while not self._known.all():
            await self._wait()

    async def drained(self) -> None:
        """Wait until all messages are sent, which bounds the number of messages that wait for shards."""
        for queue in self.outgoing:
            await queue.join()

    def receive(self, shard: int, answer: ReplaySample) -> None:
        """Accept a message from a shard. The first message states the shard's size, and later ones contain rows."""
        if SIZE in answer.columns:
            self._known[shard], self._sizes[shard] = True, int(answer.columns[SIZE][0])
        elif self._known[shard]:
            self._answers[shard].append(answer)
        self._arrived.set()

    def lose(self, shard: int) -> None:
        """Record that a shard is lost and will send nothing more."""
        self._lost = shard
        self._arrived.set()

    def sample(self, count: int, random: np.random.Generator) -> ReplayedRows:
        """Return the oldest fetched batch."""
        return self._ready.popleft()

    async def _wait(self) -> None:
        if self._lost >= 0:
            raise QueueClosed(f"shard {self._lost} of the replay buffer")
        self._arrived.clear()
        await self._arrived.wait()


# The stage fetches the batches, so `Trainer.learn` remains an ordinary function (docs/decisions/047).
class ShardedTrainerStage(TrainerStage):
    """Drives a `SACTrainer` that has a sharded replay buffer (`replay`)."""

    trainer: Any
    """A `SACTrainer`, whose module imports this one."""

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[PolicyUpdate]:  # type: ignore[override]
        """Add a batch, and learn once there are enough rows and the batches needed have arrived."""
        replay = self.trainer.replay
        assert replay is not None, "this stage runs only with shards"
        if self._take(item):
            while self.trainer.ready():
                with self._context.timings.lasting(f"{BLOCKED}/{self._context.name}"):
                    await self.trainer.prepare()
                yield self._learn()
        self._end_item(item)
        await replay.drained()


def shard_capacity(capacity: int, shards: int) -> int:
    """Return the number of rows that each shard keeps."""
    return -(-capacity // shards)


class ReplayShard(Stage[TrajectoryBatch | ReplayRequest, ReplaySample]):
    """A stage that stores one shard's rows and draws from them.

    Args:
        memory: the memory that holds the rows.
        seed: seed of the random draws.

    Attributes:
        rows: the number of rows ever added.
    """

    may_block = True

    def __init__(self, memory: ReplayMemory, seed: int) -> None:
        self.memory = memory
        self.rows = 0
        self._random = new_random(seed)

    def process(self, item: TrajectoryBatch | ReplayRequest) -> Iterator[ReplaySample]:
        """Store a batch, or answer a request with one item per batch to which this shard contributes rows."""
        layout = self.memory.layout
        if isinstance(item, TrajectoryBatch):
            self.memory.add(item, layout.from_columns(item.rows), layout.from_columns(item.trajectories, "next_"))
            self.rows += item.num_rows
            return
        for count in item.counts.tolist():
            if count < 0:  # a new trainer requests the number of rows that the shard holds
                yield ReplaySample({SIZE: np.array([len(self.memory)], np.int64)})
            elif count:
                drawn = self.memory.sample(count, self._random)
                before, after = drawn.observations, drawn.next_observations
                observed = {**layout.as_columns(before), **layout.as_columns(after, "next_")}
                yield ReplaySample({**drawn.columns, **observed})

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything except the rows, which are saved in a separate file."""
        return {"rows": self.rows, "random": random_state(self._random)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.rows = int(state["rows"])
        restore_random(self._random, state["random"])


# A resumed run may have a different number of shards: the replay memory's rows are then redistributed among them.

RUN = 16
"""Number of consecutive rows that stay together, because each run of rows needs one additional observation."""
_AT_ONCE = 2**12


def deal(former: ReplayMemory, memory: ReplayMemory, place: int, shards: int) -> None:
    """Add a shard's part of a former memory's rows, oldest first, to the shard's memory.

    Args:
        former: the memory with the rows; it has no sequences.
        memory: the shard's memory.
        place: index, below `shards`, of the first run that the shard gets.
        shards: the number of shards that get rows.
    """
    ages = np.arange(len(former))
    ages = ages[ages // RUN % shards == place % shards]
    at_once = min(_AT_ONCE, memory.capacity)
    for begin in range(0, len(ages), at_once):
        memory.add(*former.taken(ages[begin : begin + at_once]))
