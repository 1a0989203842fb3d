"""Stages that do what they should not; tests copy this file next to their configurations."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.stages import Stage, TrajectoryBatch


class Raises(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Fails on the first item once so many have come, over all resumed runs; never with 0."""

    def __init__(self, on_item: int = 0) -> None:
        self._on_item = on_item
        self._items = 0

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        self._items += 1
        if self._items == self._on_item:
            raise ValueError("this one is too hot")
        yield batch

    def state_dict(self) -> Mapping[str, Any]:
        return {"items": self._items}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._items = state["items"]


class Blocks(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Holds its event loop for a second on its second item."""

    def __init__(self) -> None:
        self._items = 0

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        self._items += 1
        if self._items == 2:
            time.sleep(1.0)
        yield batch


class Swallows(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Lets nothing through."""

    def process(self, batch: TrajectoryBatch) -> None:
        return None


class Returns(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Returns its result instead of yielding it."""

    def process(self, batch: TrajectoryBatch) -> Any:
        return batch


class Keeps(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Keeps references to the last batches, and fails if what it kept has changed or could be changed."""

    def __init__(self, how_many: int = 2) -> None:
        self._kept: deque[tuple[TrajectoryBatch, TrajectoryBatch]] = deque(maxlen=how_many)

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        for kept, copied in self._kept:
            for name, column in kept.rows.items():
                assert np.array_equal(column, copied.rows[name]), f"{name} has changed behind my back"
        self._kept.append((batch, batch.copy()))
        yield batch


class Holds(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Passes each batch on only when the next one comes, from an async generator; the last one at the end."""

    def __init__(self) -> None:
        self._held: TrajectoryBatch | None = None

    async def process(self, batch: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        await asyncio.sleep(0)
        held, self._held = self._held, batch.copy()
        if held is not None:
            yield held

    def finish(self) -> Iterator[TrajectoryBatch]:
        if self._held is not None:
            yield self._held


class OnlyLearning(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Fails on trajectories that the ghost stage should have turned away."""

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        assert batch.trajectories["learning"].all()
        yield batch


class NoStage:
    """A class that is no stage."""


class BadState(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Says a state that no checkpoint can hold."""

    def process(self, batch: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        yield batch

    def state_dict(self) -> Mapping[str, Any]:
        return {"seen": {1, 2}}


class Coroutine(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Is async, but forgot to yield."""

    async def process(self, batch: TrajectoryBatch) -> Any:  # type: ignore[override]  # the mistake itself
        return None


class CannotStart(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Opens a file that is not there."""

    def start(self, context: Any) -> None:
        open("/nowhere/at/all", encoding="utf-8").close()


class LeavingWriter:
    """A statistics writer that exits with status 0, when it is made or when it writes."""

    def __init__(self, when: str) -> None:
        self._leave(when == "making")

    def write(self, category: str, summaries: Any, step: int) -> None:
        self._leave(True)

    def add_property(self, category: str, name: str, value: object) -> None:
        return None

    def close(self) -> None:
        self._leave(True)

    def _leave(self, now: bool) -> None:
        if now:
            raise SystemExit(0)
