"""Recording: a tap that writes what passes an edge into a stream file."""

from __future__ import annotations

import time
from collections.abc import Callable

from queues.messages import Message
from queues.stream_writer import StreamWriter


class Recorder:
    """Writes the messages of one edge. Several recorders may share a writer, in one thread.

    Args:
        writer: the stream file.
        edge: the edge's name, one of the writer's header.
        clock: seconds on a monotonic clock.

    Raises:
        ValueError: if the writer's header has no such edge.
    """

    def __init__(self, writer: StreamWriter, edge: str, clock: Callable[[], float] = time.monotonic) -> None:
        if edge not in writer.header.edges:
            raise ValueError(f"{writer.path}: edge {edge!r} is not in its header {list(writer.header.edges)}")
        self.writer = writer
        self.edge = edge
        self._clock = clock

    def tap(self, message: Message) -> None:
        """Write a message at once, in the caller's thread; see docs/stream-format.md for what that costs.

        Raises:
            StreamError: if the disk refuses it.
        """
        self.writer.write(self.edge, message, self._clock())
