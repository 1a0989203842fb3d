"""The trainer stage for SAC with a sharded replay buffer: it awaits batches, because the trainer itself can't."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.activity import BLOCKED
from headrace.stages.trainer.sac import SACTrainer
from headrace.stages.trainer.stage import TrainerStage


# The stage fetches the batches, so `Trainer.learn` remains an ordinary function (docs/decisions/047).
class ShardedTrainerStage(TrainerStage):
    """Drives a `SACTrainer` that has a sharded replay buffer (`replay`)."""

    trainer: SACTrainer

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[PolicyUpdate]:  # type: ignore[override]
        """Add a batch, and learn once there are enough rows and the batches needed have arrived."""
        replay = self.trainer.replay
        assert replay is not None, "this stage runs only with shards"
        if self._take(item):
            while self.trainer.ready():
                with self._context.timings.lasting(f"{BLOCKED}/{self._context.name}"):
                    await self.trainer.prepare()
                yield self._learn()
                self._unreported_rows = self.trainer.rows_per_update
        self._end_item(item)
        await replay.drained()
