"""Recording: a tap that writes an edge's messages into a stream file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from headrace.queues.errors import StreamError
from headrace.queues.messages import Message
from headrace.queues.stream_file import StreamHeader, StreamWriter

log = logging.getLogger(__name__)


class Recorder:
    """Writes one edge's messages to a stream file. Several recorders in one thread may share a writer.

    Args:
        writer: the writer of the stream file.
        edge: the edge's name, as in the writer's header.
        clock: returns seconds on a monotonic clock.

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
        """Write a message immediately, in the caller's thread; docs/stream-format.md states the cost.

        Raises:
            StreamError: if the message can't be written to disk.
        """
        self.writer.write(self.edge, message, self._clock())


class GuardedRecorder:
    """A recorder that stops with a warning at the first disk error, so a failed recording does not end the run.

    The recorder does not resume when the disk has space again, because a recording with a gap would replay as a
    different run.

    Args:
        make: creates the recorder and its file.
    """

    def __init__(self, make: Callable[[], Recorder]) -> None:
        self._recorder: Recorder | None = None
        try:
            self._recorder = make()
        except StreamError as error:
            self._warn(error)

    def tap(self, message: Message) -> None:
        """Write a message immediately, in the caller's thread."""
        self._write(lambda recorder: recorder.tap(message))

    def announce(self, later: StreamHeader) -> None:
        """Describe behaviours that are missing from the file's header; see `StreamWriter.announce`."""
        self._write(lambda recorder: recorder.writer.announce(later))

    def finish(self) -> None:
        """Write the index and close the file."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            recorder.writer.close()
        except StreamError as error:
            self._warn(error)
        if not recorder.writer.path.exists():
            log.warning("%s was deleted while the run was writing it; the recording is lost.", recorder.writer.path)

    def _write(self, write: Callable[[Recorder], None]) -> None:
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except StreamError as error:
            self._warn(error)
            with suppress(StreamError):  # the disk is probably still full
                self._recorder.writer.close()
            self._recorder = None

    def _warn(self, error: StreamError) -> None:
        log.warning("%s. Training continues without this recording; the part written so far can be replayed.", error)
