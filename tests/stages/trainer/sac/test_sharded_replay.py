"""A replay memory in shards: which rows it gives, and what it sends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from trainer_samples import CONTINUOUS, VECTOR, experience

from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier, ReplayRequest
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.replay.replay_memory import ReplayMemory
from headrace.stages.trainer.replay.sharded_replay import (
    ASKS_SIZE,
    RUN,
    ReplayShard,
    ShardedReplay,
    deal,
    shard_capacity,
)

SPEC = BehaviorSpec("Test", (VECTOR,), CONTINUOUS)


class Shards:
    """Shards and the trainer's side of them, joined without queues between hosts."""

    def __init__(self, count: int, capacity: int = 300, spec: BehaviorSpec = SPEC) -> None:
        self.intake = ObservationPreprocessor(spec, False)
        self.replay = ShardedReplay(spec, self.intake.layout, capacity, count)
        made = shard_capacity(capacity, count)
        self.shards = [ReplayShard(ReplayMemory(spec, ObservationLayout(spec), made), seed) for seed in range(count)]
        self.barriers: list[tuple[int, int]] = []
        for number, shard in enumerate(self.shards):
            for answer in shard.process(ReplayRequest(ASKS_SIZE)):
                self.replay.receive(number, answer)

    def add(self, batch, episode: int = 0) -> None:
        batch.trajectories["episode_ids"][:] = episode
        self.replay.add(batch, *self.intake.encode(batch, 0))

    async def carry(self, number: int) -> None:
        queue = self.replay.outgoing[number]
        while True:
            item = await queue.get()
            if isinstance(item, Barrier):
                self.barriers.append((number, item.number))
            else:
                for answer in self.shards[number].process(item):
                    self.replay.receive(number, answer)
            queue.task_done()

    async def fetch(self, batches: int, rows: int, seed: int = 0):
        carrying = [asyncio.create_task(self.carry(number)) for number in range(len(self.shards))]
        await self.replay.fetch(batches, rows, np.random.default_rng(seed))
        await self.replay.drained()
        for task in carrying:
            task.cancel()
        return [self.replay.sample(rows, np.random.default_rng(0)) for _ in range(batches)]


def numbered(length: int, first: int, spec: BehaviorSpec = SPEC):
    """An episode whose rewards are the numbers of its rows."""
    batch = experience(spec, [length], seed=first, squashed=True)
    batch.rows["rewards"][:] = np.arange(first, first + length)
    return batch


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_every_row_is_equally_likely_in_shards_of_different_sizes(count):
    shards = Shards(count)
    shards.add(numbered(10, 0), episode=0)
    shards.add(numbered(70, 10), episode=1)
    shards.add(numbered(20, 80), episode=2)
    found = await shards.fetch(60, 500)
    assert all(len(batch.columns["rewards"]) == 500 for batch in found)
    drawn = np.concatenate([batch.columns["rewards"] for batch in found]).astype(int)
    counts = np.bincount(drawn, minlength=100)
    assert len(counts) == 100
    assert len(shards.replay) == 100
    # 30,000 draws of 100 rows: 300 each, give or take 17.
    np.testing.assert_allclose(counts, 300, atol=6 * 17.3)


async def test_sampled_rows_equal_the_added_rows():
    spec = BehaviorSpec("Test", (VECTOR,), ActionSpec(2, (3, 2), masked=True))
    shards = Shards(2, spec=spec)
    batch = numbered(9, 0, spec)
    shards.add(batch)
    (found,) = await shards.fetch(1, 40)
    rows = found.columns["rewards"].astype(int)
    for name in ("continuous_actions", "discrete_actions", "action_masks"):
        np.testing.assert_array_equal(found.columns[name], batch.rows[name][rows])
    observed = np.concatenate((batch.rows["obs_0"], batch.trajectories["next_obs_0"]))
    np.testing.assert_array_equal(found.observations.vectors, observed[rows])
    last = batch.terminated[0] & (rows == 8)
    np.testing.assert_array_equal(found.next_observations.vectors[~last], observed[rows + 1][~last])


async def test_a_checkpoint_reaches_each_shard_behind_the_rows_before_it():
    shards = Shards(2)
    shards.add(numbered(5, 0), episode=0)
    shards.replay.save(4)
    await shards.fetch(1, 3)
    assert sorted(shards.barriers) == [(0, 4), (1, 4)]
    assert sum(shard.rows for shard in shards.shards) == 5


async def test_a_replacement_trainer_ignores_answers_to_the_lost_one():
    shards = Shards(1)
    shards.add(numbered(5, 0))
    await shards.fetch(1, 3)
    (shard,) = shards.shards
    (stale,) = shard.process(ReplayRequest(np.array([4], np.int64)))
    shards.replay = ShardedReplay(SPEC, shards.intake.layout, 300, 1)
    shards.replay.receive(0, stale)
    carrying = asyncio.create_task(shards.carry(0))
    await shards.replay.opened()
    carrying.cancel()
    assert len(shards.replay) == 5
    (batch,) = await shards.fetch(1, 3)
    assert len(batch.columns["rewards"]) == 3


async def test_the_loss_of_a_shard_ends_the_wait_for_its_batches():
    replay = ShardedReplay(SPEC, ObservationLayout(SPEC), 100, 2)
    replay.lose(1)
    with pytest.raises(QueueClosed):
        await replay.opened()


def all_rows(memory: ReplayMemory) -> list[tuple[float, ...]]:
    """Reward, end, observation and next observation of each row, in some order."""
    batch, before, after = memory.taken(np.arange(len(memory)))
    ends = np.cumsum(batch.lengths) - 1
    nexts = np.concatenate((before.vectors[1:], before.vectors[:1]))
    nexts[ends] = after.vectors
    terminated = np.zeros(len(memory), np.bool_)
    terminated[ends] = batch.terminated
    return sorted(zip(batch.rows["rewards"], terminated, *before.vectors.T, *nexts.T, strict=True))


@pytest.mark.parametrize("capacity", [500, 120])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_rows_of_a_memory_are_divided_among_shards(shards, capacity):
    intake, layout = ObservationPreprocessor(SPEC, False), ObservationLayout(SPEC)
    former = ReplayMemory(SPEC, layout, capacity)
    for piece in range(10):  # of three agents by turns, some of which go on in a later batch
        batch = experience(SPEC, [17, 5, 9], piece % 4, squashed=True)
        batch.rows["rewards"][:] = np.arange(31) + 31 * piece
        former.add(batch, *intake.encode(batch, 0))
    found: list[tuple[float, ...]] = []
    for place in range(shards):
        memory = ReplayMemory(SPEC, layout, capacity)
        deal(former, memory, place, shards)
        assert abs(len(memory) - len(former) / shards) <= RUN
        found += all_rows(memory)
    assert sorted(found) == all_rows(former)
