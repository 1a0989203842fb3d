"""A stage for runs that others look at; tests copy this file next to their configurations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from headrace.stages import Stage, TrajectoryBatch


class Calm(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Lets a batch through now and then, which leaves the processor to those who look at the run."""

    async def process(self, batch: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        await asyncio.sleep(0.05)
        yield batch
