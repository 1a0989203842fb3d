"""The memory behind one link of a shared queue: a pool of slabs of equal size, each for one message's arrays.

`LinkSpec` sets the pool's size, and rejects sizes that can't work; `Slabs` maps the pool into this process; `pieces`
splits a message into pieces that each fit a slab. The two ends (`shared_sender`, `shared_receiver`) track which slabs
may be written.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.queues import codec
from headrace.queues.agent_manager_queue import Overflow
from headrace.queues.errors import QueueError
from headrace.queues.messages import Array, Columns, Message, TrajectoryBatch
from headrace.queues.platform import Segment

POISON = 0xA5
"""Byte value that fills returned slabs in debug mode."""


class TooLargeError(QueueError):
    """Raised if a message does not fit in a slab and can't be split into smaller pieces."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The capacity of a link, the same at both ends.

    Raises:
        ValueError: if the link could deadlock, or could never fill up; the message explains why.
    """

    maxlen: int
    """Maximum number of items put but not yet taken; must be at least 1."""
    slab_bytes: int
    """Size of one slab in bytes, which limits the size of a message. Larger batches are sent in pieces."""
    spare: int = 2
    """Number of slabs in addition to `maxlen`, for batches that the consumer may keep while the link is full; must be
    at least 1."""
    overflow: Overflow = "wait"
    """What a put does if the link is full, as in `AgentManagerQueue`."""
    min_bytes: int = 0
    """Size in bytes of the largest unsplittable piece (one trajectory, one policy), as far as the caller knows."""

    def __post_init__(self) -> None:
        if self.maxlen < 1:
            raise ValueError(f"maxlen must be at least 1, got {self.maxlen}")
        if self.spare < 1:
            raise ValueError(
                f"spare must be at least 1, got {self.spare}: the consumer holds the slab of its current batch, so "
                "without a spare slab the link could never be full"
            )
        if self.slab_bytes < max(1, self.min_bytes):
            raise ValueError(
                f"slab_bytes is {self.slab_bytes}, but one message needs {max(1, self.min_bytes)} bytes, so that "
                "message could never be sent: raise slab_bytes, or make trajectories shorter (time_horizon)"
            )
        if self.overflow not in ("wait", "replace_oldest"):
            raise ValueError(f"overflow must be 'wait' or 'replace_oldest', got {self.overflow!r}")
        if self.overflow == "replace_oldest" and self.maxlen != 1:
            raise ValueError(
                f"maxlen must be 1 with replace_oldest, which keeps only the newest item; got {self.maxlen}"
            )

    @property
    def slabs(self) -> int:
        """Number of slabs, which limits the link's memory."""
        return self.maxlen + self.spare

    @property
    def stride(self) -> int:
        """Bytes from the start of one slab to the start of the next."""
        return codec.aligned(self.slab_bytes)

    @property
    def segment_bytes(self) -> int:
        """Size of the entire pool in bytes."""
        return self.slabs * self.stride


class Slabs:
    """One link's pool, mapped into this process. The mapping lives as long as any view of it."""

    def __init__(self, segment: Segment, spec: LinkSpec) -> None:
        self._memory = memoryview(segment.map())
        self._spec = spec

    def write(self, slab: int, arrays: Sequence[Array], starts: Sequence[int]) -> None:
        """Copy a message's arrays into a slab."""
        codec.write_arrays(arrays, starts, self._view(slab))

    # Views keep their slab in use: a careless stage blocks its producer, but never reads other data
    # (docs/decisions/005).
    def read(self, slab: int, header: Mapping[str, Any], when_unused: Callable[[int], None]) -> list[Array]:
        """Return read-only views of the arrays in a slab.

        Args:
            slab: the slab's number.
            header: the message's header, from `codec.describe`.
            when_unused: called with the slab's number when its last view is gone. The call can happen at any time and
                in any thread, so the function may only record the number.
        """
        # Views of views refer to the lowest *array*, which is this one because only a memoryview is below it. This
        # array therefore lives exactly as long as any view of the slab.
        root = np.frombuffer(self._view(slab).toreadonly(), np.uint8)
        weakref.finalize(root, when_unused, slab).atexit = False
        return codec.read_arrays(header, root)

    def poison(self, slab: int) -> None:
        """Overwrite a slab that has no views."""
        np.frombuffer(self._view(slab), np.uint8)[:] = POISON

    def _view(self, slab: int) -> memoryview:
        start = slab * self._spec.stride
        return self._memory[start : start + self._spec.slab_bytes]


def pieces(message: Message, slab_bytes: int) -> Iterator[Message]:
    """Yield the message itself or, for a trajectory batch larger than a slab, its parts in order.

    Raises:
        TooLargeError: if a policy or a single trajectory (the last one with the batch's episodes and games) needs more
            than a slab.
    """
    if isinstance(message, TrajectoryBatch):
        sizes = _PieceSizes(message)
        while sizes.all_of(message) > slab_bytes:
            # The last trajectory stays with the episodes and games, which are sent in the last piece.
            first = min(sizes.how_many_fit(message, slab_bytes), message.num_trajectories - 1)
            if first < 1:
                smallest = message.split(1)[0] if message.num_trajectories > 1 else message
                raise TooLargeError(_too_small(message, sizes.all_of(smallest), slab_bytes))
            head, message = message.split(first)
            yield head
    else:
        needed = codec.offsets(codec.describe(message)[0])[1]
        if needed > slab_bytes:
            raise TooLargeError(_too_small(message, needed, slab_bytes))
    yield message


class _PieceSizes:
    """Computes how many bytes parts of a trajectory batch need in a slab."""

    def __init__(self, batch: TrajectoryBatch) -> None:
        self._row_bytes = _bytes_per_entry(batch.rows)
        self._trajectory_bytes = _bytes_per_entry(batch.trajectories)

    def all_of(self, batch: TrajectoryBatch) -> int:
        others = [*batch.episodes.values(), *batch.games.values()]
        return self._size(batch.num_rows, batch.num_trajectories) + sum(codec.aligned(c.nbytes) for c in others)

    def how_many_fit(self, batch: TrajectoryBatch, slab_bytes: int) -> int:
        """Return how many leading trajectories fit a slab, without the episodes and games."""
        ends = np.cumsum(batch.lengths)
        return bisect_right(range(batch.num_trajectories), slab_bytes, key=lambda k: self._size(int(ends[k]), k + 1))

    def _size(self, rows: int, trajectories: int) -> int:
        return sum(codec.aligned(rows * each) for each in self._row_bytes) + sum(
            codec.aligned(trajectories * each) for each in self._trajectory_bytes
        )


def _bytes_per_entry(columns: Columns) -> list[int]:
    return [c.dtype.itemsize * math.prod(c.shape[1:]) for c in columns.values()]


def _too_small(message: Message, needed: int, slab_bytes: int) -> str:
    if isinstance(message, TrajectoryBatch):
        what, remedy = f"one trajectory of {message.behavior_id}", ", or make trajectories shorter (time_horizon)"
    else:
        what, remedy = f"a {type(message).__name__}", ""
    return f"{what} needs {needed} bytes, but slab_bytes is {slab_bytes}: raise it to at least {needed}{remedy}"
