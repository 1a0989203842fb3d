"""The errors raised by `queues`, including the queue conditions that callers handle."""

from __future__ import annotations


class QueueError(Exception):
    """Base class of all queue conditions."""


class QueueFull(QueueError):
    """`put_nowait` was called on a full queue."""


class QueueEmpty(QueueError):
    """`get_nowait` was called on an empty queue."""


class QueueClosed(QueueError):
    """`put` was called after `close()`, or `get` on a queue that is closed and drained."""


class PeerLost(QueueError):
    """The process at the other end of a queue has died or can't be reached."""


class SpecError(Exception):
    """A behaviour spec or behaviour id is malformed."""


class ShapeError(Exception):
    """An array in a message does not have the shape or dtype given in the column table."""


class StreamError(Exception):
    """A file is not a readable stream: wrong magic, version or header, or a malformed frame."""
