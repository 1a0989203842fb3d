"""Recording: a tap that writes what passes an edge into a stream file.

`Recorder` is called by whoever owns an edge; `RecorderStage` is the same as a stage, for an edge that
the YAML taps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from queues.messages import Message
from queues.stream_writer import StreamWriter
from stages.stage import Stage


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
            StreamError: if the disk does not take it.
        """
        self.writer.write(self.edge, message, self._clock())


class RecorderStage(Stage[Message, Message]):
    """Records every item and passes it on, the very same object. Closes the stream when it stops.

    Checkpoint barriers go round `process` in the loop that runs stages, so a stage alone can't see them; an
    edge whose barriers are wanted is tapped with `Recorder`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def process(self, item: Message) -> Iterator[Message]:
        """Record, then pass on: what is learned from is in the recording, even if the process dies next."""
        self._recorder.tap(item)
        yield item

    def stop(self) -> None:
        """Close the stream file."""
        self._recorder.writer.close()
