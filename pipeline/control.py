"""The control channel: one bounded, ordered channel between each host and main, apart from the data.

Messages are small frozen dataclasses. Within a process they are handed over as they are; between processes they are
msgpack frames (four bytes of length, little-endian, then the body). Nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import msgpack

from pipeline.flow import CreditRequest, Grant
from queues.agent_manager_queue import AgentManagerQueue
from queues.errors import QueueClosed
from queues.messages import Assignment
from stages.environment.parameters import EnvironmentParameters
from stages.trainer.stage import TrainerReport

# Up: from a host to main. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BehaviorSeen:
    """An actor has met a behaviour id for the first time; the graph may have to grow."""

    source: int
    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """A learner has built its trainer."""

    behavior: str
    rows_per_update: int
    bounds_lag: bool
    """Whether flow control is to bound the lag: true for on-policy trainers."""
    held_rows: int
    """Rows that it brought along from a checkpoint."""


@dataclass(frozen=True, slots=True)
class CreditsReturned:
    """A stage ended trajectories other than by learning from them; totals are cumulative."""

    by: str
    behavior: str
    source: int
    total: int


@dataclass(frozen=True, slots=True)
class PartSaved:
    """A host has written one stage's part of a checkpoint, durably."""

    number: int
    name: str
    file: str
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A host could not write one stage's part: the checkpoint is given up, the run goes on."""

    number: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """A source has no more to give (a replay that came to its end)."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Exported:
    """A learner has written a policy for use elsewhere."""

    behavior: str
    step: int
    file: str
    reward: float | None
    onnx: str | None = None
    """The same policy as an `.onnx` file; None where that could not be made."""


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """Statistics drained from a host's collector, and what its queues have counted."""

    statistics: Mapping[str, Any]
    queues: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A policy was played deterministically on environments of its own."""

    behavior: str
    """The behaviour id."""
    step: int
    version: int
    mean: float
    deviation: float
    episodes: int
    best: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """Something that a host has to say to the user."""

    level: int
    logger: str
    text: str


@dataclass(frozen=True, slots=True)
class HostFailed:
    """A host ends because something in it failed."""

    message: str
    traceback: str
    stage: str = ""
    key: tuple[str | int, ...] = ()
    """The key of the YAML that is to blame, if one is."""
    of_user: bool = False
    """Whether code of the user's own raised it, so that the traceback says more than the message."""


@dataclass(frozen=True, slots=True)
class HostFinished:
    """A host has done all its work and ends."""

    note: str = ""


# Down: from main to a host. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """A queue's end is there for this host to open."""

    name: str
    """Such as `trajectories/Ball` or `policies/Ball?team=0`."""
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Reach checkpoint `number`, and write your part into `folder`."""

    number: int
    folder: str


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Write your part of checkpoint `number` at once, without waiting for a barrier: the stream has broken off."""

    number: int
    folder: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop producing; what is under way is drained."""

    reason: str = ""


ControlMessage = (
    BehaviorSeen
    | LearnerReady
    | CreditsReturned
    | CreditRequest
    | TrainerReport
    | PartSaved
    | PartFailed
    | SourceEnded
    | Exported
    | StatisticsReport
    | Evaluated
    | LogLine
    | HostFailed
    | HostFinished
    | OpenEdge
    | Assignment
    | EnvironmentParameters
    | Grant
    | BeginCheckpoint
    | SaveNow
    | Stop
)

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in ControlMessage.__args__}

CONTROL_BOUND = 1024
"""Messages under way per direction. Hosts send a few a second; a full channel means that main is stuck, and waits."""

MAX_FRAME = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class ControlError(Exception):
    """The channel carried something that is no control message."""


def encode(message: ControlMessage) -> bytes:
    """A message as msgpack."""
    values = [getattr(message, item.name) for item in fields(message)]
    return msgpack.packb([type(message).__name__, *values], use_bin_type=True)  # type: ignore[no-any-return]


def decode(frame: bytes) -> ControlMessage:
    """The inverse of `encode`; tuples at the top level come back as tuples.

    Raises:
        ControlError: if the frame is not a control message.
    """
    try:
        name, *values = msgpack.unpackb(frame, raw=False, strict_map_key=False)
        kind = _TYPES[name]
        return kind(*(tuple(value) if isinstance(value, list) else value for value in values))  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ControlError(f"not a control message: {error!r}") from error


class ControlEnd(Protocol):
    """One end of a control channel."""

    def send(self, message: ControlMessage) -> None:
        """Send at once; the channel keeps the order."""
        ...

    async def drain(self) -> None:
        """Wait while more than the bound is under way: whoever sends in a loop calls this."""
        ...

    def receive(self) -> AsyncIterator[ControlMessage]:
        """Messages until the other end closes or dies."""
        ...

    def close(self) -> None:
        """Send no more; closing twice is allowed."""
        ...


@dataclass
class LocalControl:
    """An end within one event loop."""

    _outbox: AgentManagerQueue[ControlMessage]
    _inbox: AgentManagerQueue[ControlMessage]

    def send(self, message: ControlMessage) -> None:
        """Send at once."""
        with contextlib.suppress(QueueClosed):
            self._outbox.put_nowait(message)

    async def drain(self) -> None:
        """Give the other side a turn."""
        await asyncio.sleep(0)

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Messages until the other end closes."""
        async for message in self._inbox:
            yield message

    def close(self) -> None:
        """Send no more."""
        self._outbox.close()


def local_pair(name: str) -> tuple[LocalControl, LocalControl]:
    """Both ends of a channel within one event loop: (main's, the host's)."""
    down: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control down {name}", CONTROL_BOUND)
    up: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control up {name}", CONTROL_BOUND)
    return LocalControl(down, up), LocalControl(up, down)


class SocketControl:
    """An end of a channel between processes, on a connected socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: ControlMessage) -> None:
        """Send at once."""
        if not self._writer.is_closing():
            body = encode(message)
            self._writer.write(_LENGTH.pack(len(body)) + body)

    async def drain(self) -> None:
        """Wait until the socket has taken most of what was sent."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Messages until the other end closes or dies."""
        while True:
            try:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > MAX_FRAME:
                    raise ControlError(f"a control frame claims {length} bytes, at most {MAX_FRAME} are allowed")
                frame = await self._reader.readexactly(length)
            except asyncio.IncompleteReadError:
                return
            except ConnectionError:
                with contextlib.suppress(ConnectionError):
                    await self._writer.wait_closed()  # or asyncio would report the same error once more, on its own
                return
            yield decode(frame)

    def close(self) -> None:
        """Send no more."""
        self._writer.close()
