"""Replay shards in main and in the learner: the shards' hosts, and the queues that connect them to the learner.

For a follower, the learner stands in for the shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace.pipeline.common.graph import shard_names
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState, carry
from headrace.pipeline.main.run_part import RunPart
from headrace.pipeline.roles.stages import Runner
from headrace.queues.ends import ItemSink, ItemSource
from headrace.queues.errors import QueueClosed

if TYPE_CHECKING:
    from headrace.stages.trainer.replay.sharded_replay import ShardedReplay


class ReplayShards(RunPart):
    """Starts each learner's replay shards."""

    async def learner_started(self, state: BehaviorState, learner: HostHandle) -> list[Runner]:
        """Start the hosts of a behaviour's replay shards; return the runners that main needs for them."""
        runners, behavior, launcher = [], state.behavior, self.run.launcher
        for shard, name in enumerate(shard_names(self.run.plan.config, behavior)):
            host = await launcher.start(
                "replay_shard", name, behavior=behavior, spec=state.spec.to_plain(), replica=shard
            )
            rows, samples = f"rows/{behavior}/{shard}", f"samples/{behavior}/{shard}"
            for queue, giver, taker in ((rows, learner, host), (samples, host, learner)):
                receiver = launcher.ends[f"{queue} in"] = await giver.receiver(queue, newest=False)
                sender = launcher.ends[f"{queue} out"] = await taker.sender(queue)
                runners.append(carry(receiver, sender))
        return runners


class ShardEdges:
    """Carries a trainer's messages to its replay shards, and their answers back.

    Args:
        count: number of shards; main opens their queues in order.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.senders = asyncio.Queue[ItemSink[Any]](count)
        self.receivers = asyncio.Queue[ItemSource[Any]](count)
        self._replay: ShardedReplay | None = None

    def save(self, number: int) -> None:
        """Let the shards write their parts of a checkpoint."""
        if self._replay is not None:
            self._replay.save(number)

    @asynccontextmanager
    async def joined(
        self, replay: ShardedReplay, share: Callable[[int, ItemSource[Any]], ItemSource[Any]] | None = None
    ) -> AsyncIterator[None]:
        """Carry messages in this context; on exit, wait until all have been sent. The host closes the queues.

        Args:
            replay: the trainer's side.
            share: wraps the queue from a shard so that other hosts receive its items first; None to leave it unwrapped.
        """
        self._replay = replay
        async with asyncio.TaskGroup() as tasks:
            senders = [await self.senders.get() for _ in range(self.count)]
            receivers = [await self.receivers.get() for _ in range(self.count)]
            if share is not None:
                receivers = [share(shard, receiver) for shard, receiver in enumerate(receivers)]
            sending = [_send(replay, shard, sender) for shard, sender in enumerate(senders)]
            receiving = [_receive(replay, shard, receiver) for shard, receiver in enumerate(receivers)]
            carrying = [tasks.create_task(carry) for carry in (*sending, *receiving)]
            try:
                yield
                await replay.drained()
            finally:
                for task in carrying:
                    task.cancel()


async def _send(replay: ShardedReplay, shard: int, sender: ItemSink[Any]) -> None:
    queue, open_ = replay.outgoing[shard], True
    while True:
        item = await queue.get()
        try:
            if open_:
                await sender.put(item)
        except QueueClosed:
            open_ = False  # the trainer notices the missing answers
        finally:
            queue.task_done()
        del item


async def _receive(replay: ShardedReplay, shard: int, receiver: ItemSource[Any]) -> None:
    async for answer in receiver:
        replay.receive(shard, answer)
        del answer
    replay.lose(shard)
