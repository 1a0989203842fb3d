"""The errors raised by `queues`, including the queue conditions that callers handle."""

from __future__ import annotations


class QueueError(Exception):
    """Base class of the errors that report a queue's state."""


class QueueFull(QueueError):
    """Raised when `put_nowait` is called on a full queue."""


class QueueEmpty(QueueError):
    """Raised when `get_nowait` is called on an empty queue."""


class QueueClosed(QueueError):
    """Raised when `put` is called after `close()`, or `get` is called on a queue that is closed and drained."""


class PeerLost(QueueError):
    """Raised if the process at the other end of a queue has died or can't be reached."""


class SpecError(Exception):
    """Raised if a behaviour spec or behaviour id is malformed."""


class ShapeError(Exception):
    """Raised if an array in a message does not have the shape or dtype listed in the column table."""


class StreamError(Exception):
    """Raised if a file is not a readable stream: it has the wrong magic, version or header, or a malformed frame."""
