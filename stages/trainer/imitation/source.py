"""Demonstrations as a source: they flow to trainers that only imitate, in place of what actors would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from queues.messages import Message
from queues.specs import BehaviorSpec
from stages.stage import Source, StageContext
from stages.trainer.imitation.demonstrations import Demonstrations
from stages.trainer.imitation.feeding import demonstration_batches
from stages.trainer.imitation.loading import load_recorded


class DemonstrationSource(Source[Message]):
    """Yields demonstrated episodes over and over, until asked to stop; behaviours take turns.

    Args:
        paths: `demo_path` by behaviour name.
        rows_per_batch: most steps of a batch.
        folder: the YAML's folder, where relative paths start.
        seen: by behaviour name, how many of these steps a resumed trainer has taken in before. So the source has no
            state of its own to save, and whatever a trainer's state was saved by, it goes on with what comes next.
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
        self._demonstrations: list[Demonstrations] = []
        self._seed = 0
        self._stopping = False
        self.behavior_specs: dict[str, BehaviorSpec] = {}
        """By behaviour id; known after `start`."""

    def start(self, context: StageContext) -> None:
        """Read all demonstrations.

        Raises:
            StageError: if there are none, or what there is can't be learned from.
            StreamError: if a stream is no stream.
        """
        self._seed = context.seed
        self._demonstrations = [load_recorded(path, name, self._folder) for name, path in self._paths.items()]
        self.behavior_specs = {found.spec.behavior_id: found.spec for found in self._demonstrations}

    async def produce(self) -> AsyncIterator[Message]:
        """Yield batches until asked to stop; without demonstrations, none."""
        feeds = [
            demonstration_batches(found, self._rows_per_batch, self._seed, self._seen.get(found.spec.name, 0))
            for found in self._demonstrations
        ]
        while feeds:
            for feed in feeds:
                if self._stopping:
                    return
                yield next(feed)
                await asyncio.sleep(0)  # making them never waits: let other stages of this host have a turn

    def request_stop(self) -> None:
        """End after the batch that is being made."""
        self._stopping = True
