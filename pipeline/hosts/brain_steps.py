"""The way of steps that brains have decided, which are learned from by nobody: past users' stages, unless broadcast."""

from __future__ import annotations

from typing import Any

from headrace.config import RunConfig
from headrace.queues.ends import ItemSink
from headrace.queues.messages import Barrier, TrajectoryBatch


class BrainSteps:
    """The outlet of the agent processor: brains' steps that are not broadcast do not pass recorder and stages.

    Those of a behaviour that never learns go straight to main, which counts them; of one that learns in other games
    they are dropped.

    Args:
        sink: where all else goes.
        router: the way out of the actor.
        config: the run's configuration.
    """

    def __init__(self, sink: ItemSink[Any], router: ItemSink[Any], config: RunConfig) -> None:
        self._sink = sink
        self._router = router
        self._config = config

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        """Pass an item on."""
        if isinstance(item, TrajectoryBatch):
            settings = self._config.behavior_settings(item.behavior)
            if settings.brain and not settings.broadcast:
                await (_put_learned(self._sink, item) if settings.learns else self._router.put(item))
                return
        await self._sink.put(item)

    def close(self) -> None:
        """Pass the end on."""
        self._sink.close()


class LearnedStepsOnly:
    """The last outlet of an actor: of a behaviour that learns in some games, only the steps of these go on.

    Args:
        sink: the router.
        config: the run's configuration.
    """

    def __init__(self, sink: ItemSink[Any], config: RunConfig) -> None:
        self._sink = sink
        self._config = config

    async def put(self, item: Any) -> None:
        """Pass an item on."""
        if isinstance(item, TrajectoryBatch):
            settings = self._config.behavior_settings(item.behavior)
            if settings.brain and settings.learns:
                await _put_learned(self._sink, item)
                return
        await self._sink.put(item)

    def close(self) -> None:
        """Pass the end on."""
        self._sink.close()


async def _put_learned(sink: ItemSink[Any], item: TrajectoryBatch) -> None:
    learned = item.trajectories["learning"]
    if learned.all():
        await sink.put(item)
    elif learned.any():
        await sink.put(item.select(learned))
