"""The errors of `queues`, and the conditions of a queue that its callers distinguish."""

from __future__ import annotations


class QueueError(Exception):
    """Any condition of a queue."""


class QueueFull(QueueError):
    """`put_nowait` found the queue at its bound."""


class QueueEmpty(QueueError):
    """`get_nowait` found no item."""


class QueueClosed(QueueError):
    """A put after `close()`, or a get from a queue that is closed and drained."""


class PeerLost(QueueError):
    """The process at the other end of a queue has died, or is out of reach."""


class SpecError(Exception):
    """A behaviour spec or behaviour id is malformed."""


class ShapeError(Exception):
    """An array in a message does not have the shape or dtype that the column table states."""


class StreamError(Exception):
    """A file is not a readable stream: wrong magic, version or header, or an impossible frame."""
