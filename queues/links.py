"""A link, which joins one producer process to one consumer process, and the protocol on its socket.

A link is a connected pair of stream sockets and a segment of slabs. `make_link` creates both ends in the process that
starts the others. An end is passed on as a ticket (plain data), and opened by a `SharedSender` or `SharedReceiver`.
Arrays stay in slabs; the socket carries only frames of a few hundred bytes:

- to the consumer: `HELLO nonce` (a producer starts), `ITEM` (slab and message header), `END`;
- to the producer: `WELCOME nonce` (which slabs are still in use), `TAKEN slab`, `FREE slab`, `CLOSED`.

A new producer can replace a killed one on the same socket. So can a new consumer, to which its producers send HELLO
again. The reader skips bytes that the dead process wrote or read only in part: it searches for the sixteen bytes at the
start of every HELLO and WELCOME.

The slabs are a pool of equal size, each for one message's arrays. `LinkSpec` sets the pool's size; `Slabs` maps the
pool into this process; `pieces` splits a message into pieces that each fit a slab.
The two ends (`shared_queue`) track which slabs may be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from headrace.queues import codec
from headrace.queues.agent_manager_queue import Overflow
from headrace.queues.codec import pack, unpack
from headrace.queues.errors import QueueError
from headrace.queues.messages import Array, Message, TrajectoryBatch
from headrace.queues.platform import Segment, connected_pair, create_segment, open_segment, open_socket, write_ticket

POISON = 0xA5
"""Byte value that fills returned slabs in debug mode."""


class TooLargeError(QueueError):
    """Raised if a message does not fit in a slab and can't be split into smaller pieces."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The capacity of a link, the same at both ends."""

    maxlen: int
    """Maximum number of items put but not yet taken; must be at least 1."""
    slab_bytes: int
    """Size of one slab in bytes, which limits the size of a message. Larger batches are sent in pieces."""
    spare: int = 2
    """Number of slabs in addition to `maxlen`, for batches that the consumer may keep while the link is full; must be
    at least 1, because the consumer holds the slab of its current batch."""
    overflow: Overflow = "wait"
    """What a put does if the link is full, as in `AgentManagerQueue`."""

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
    while (needed := _size_of(message)) > slab_bytes:
        if not isinstance(message, TrajectoryBatch) or message.num_trajectories <= 1:
            raise TooLargeError(_too_small(message, needed, slab_bytes))
        batch = message
        # The last trajectory stays with the episodes and games, which are sent in the last piece.
        counts = range(1, batch.num_trajectories)
        fitting = bisect_right(counts, slab_bytes, key=lambda count: _size_of(batch.split(count)[0]))
        if not fitting:
            raise TooLargeError(_too_small(batch, _size_of(batch.split(1)[0]), slab_bytes))
        head, message = batch.split(fitting)
        yield head
    yield message


def _size_of(message: Message) -> int:
    """Return the number of bytes that a message's arrays need in a slab."""
    return codec.offsets(codec.describe(message)[0])[1]


def _too_small(message: Message, needed: int, slab_bytes: int) -> str:
    if isinstance(message, TrajectoryBatch):
        what, remedy = f"one trajectory of {message.behavior_id}", ", or make trajectories shorter (time_horizon)"
    else:
        what, remedy = f"a {type(message).__name__}", ""
    return f"{what} needs {needed} bytes, but slab_bytes is {slab_bytes}: raise it to at least {needed}{remedy}"


NO_SLAB = -1
"""The slab number of a message without arrays."""

_HELLO = b"\x00headrace-hello\x00"
_WELCOME = b"\x00headrace-ready\x00"
NONCE_BYTES = 16
"""Length of the random nonce that distinguishes a producer's WELCOME from its predecessor's."""
_ITEM_HEAD = struct.Struct("<BII")  # kind, length and CRC-32 of the rest
_BACK = struct.Struct("<Bi")  # kind, slab
_LARGEST_FRAME = 1 << 24
_CHUNK = 1 << 16


class LinkError(QueueError):
    """Raised if the bytes received on a link's socket violate the protocol."""


class LinkEnd:
    """One end of a link, before it is opened: a socket, a handle to the segment, and the sizes.

    Close every end that is passed to another process, unless this process keeps it for a replacement process. The other
    side notices that a process has died only when no process holds that end any more.
    """

    def __init__(self, sock: socket.socket, segment: Segment, spec: LinkSpec) -> None:
        self.sock = sock
        self.segment = segment
        self.spec = spec

    def ticket(self, child_pid: int) -> dict[str, Any]:
        """Return the plain data (for msgpack) that a child process needs to open the end."""
        return {
            "socket": write_ticket(self.sock, child_pid),
            "segment": write_ticket(self.segment, child_pid),
            "spec": asdict(self.spec),
        }

    @classmethod
    def from_ticket(cls, ticket: dict[str, Any]) -> LinkEnd:
        """Return the end that the parent's ticket describes. Call this in the child."""
        spec = LinkSpec(**ticket["spec"])
        return cls(open_socket(ticket["socket"]), open_segment(ticket["segment"], spec.segment_bytes), spec)

    def close(self) -> None:
        """Close this process's handle to the end. Closing twice is allowed."""
        self.sock.close()
        self.segment.close()


def make_link(spec: LinkSpec) -> tuple[LinkEnd, LinkEnd]:
    """Create a link; return the sender's and the receiver's end."""
    sender, receiver = connected_pair()
    segment = create_segment(spec.segment_bytes)
    return LinkEnd(sender, segment, spec), LinkEnd(receiver, segment.duplicate(), spec)


class Channel(asyncio.Protocol):
    """The socket of an opened end: sends bytes immediately, and has callbacks for received bytes and for closing."""

    def __init__(self, on_bytes: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._sock: socket.socket
        self._transport: asyncio.Transport
        self._over = asyncio.Event()

    @classmethod
    async def open(cls, sock: socket.socket, on_bytes: Callable[[bytes], None], on_lost: Callable[[], None]) -> Channel:
        """Attach a connected socket to the running event loop. From then on, the channel owns the socket."""
        channel = cls(on_bytes, on_lost)
        channel._sock = sock
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=sock)
        return channel

    def send(self, frame: bytes) -> None:
        """Send a frame, or do nothing if the channel is closed."""
        if not self._transport.is_closing():
            self._transport.write(frame)

    def finish(self) -> None:
        """Stop sending, but keep receiving until the other side closes."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Send what is still buffered, then close."""
        self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until either side has closed the channel. Cancelling the wait closes the channel immediately."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes; called by the event loop."""
        self._on_bytes(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; called once by the event loop."""
        if exc is not None:
            # Writing failed because the other side is gone, but data that it sent earlier has not been read yet.
            with contextlib.suppress(OSError):
                while chunk := self._sock.recv(_CHUNK):
                    self._on_bytes(chunk)
        self._over.set()
        on_lost = self._on_lost
        self._on_bytes = self._on_lost = (
            _ignore  # the callbacks' owner refers to this channel, so release the owner and its memory now
        )
        on_lost()


def _ignore(*_: object) -> None:
    """Ignore calls after the channel has closed."""


class ForwardKind(IntEnum):
    """The kinds of frames sent to the consumer."""

    HELLO = 0
    ITEM = 1
    END = 2


class BackKind(IntEnum):
    """The kinds of frames sent to the producer."""

    WELCOME = 0
    TAKEN = 1
    FREE = 2
    CLOSED = 3


def hello(nonce: bytes) -> bytes:
    """Return the frame that a producer sends first."""
    return _HELLO + nonce


def item(slab: int, header: dict[str, Any]) -> bytes:
    """Return the frame for a message in a slab."""
    body: bytes = pack([slab, header])
    return _ITEM_HEAD.pack(ForwardKind.ITEM, len(body), zlib.crc32(body)) + body


def end() -> bytes:
    """Return the frame after the last message."""
    return _ITEM_HEAD.pack(ForwardKind.END, 0, 0)


def welcome(nonce: bytes, untaken: int, used: Sequence[int], slabs: int) -> bytes:
    """Return the reply to a HELLO: the number of items not yet taken, and the slabs still in use."""
    flags = bytearray(slabs)
    for slab in used:
        flags[slab] = 1
    return _WELCOME + nonce + struct.pack("<I", untaken) + flags


def back(kind: BackKind, slab: int = NO_SLAB) -> bytes:
    """Return a frame for the producer, about one slab or about none."""
    return _BACK.pack(kind, slab)


class ForwardReader:
    """Splits the bytes that the consumer receives into frames.

    Args:
        succeeds: True to skip the bytes sent to a dead consumer, up to the next HELLO.
    """

    def __init__(self, succeeds: bool = False) -> None:
        self._buffer = bytearray()
        self._skips = succeeds

    def feed(self, data: bytes) -> Iterator[tuple[ForwardKind, bytes]]:
        """Yield the complete frames, each with its nonce (HELLO) or its body (ITEM).

        Raises:
            LinkError: if a frame is malformed.
        """
        self._buffer += data
        while True:
            start = self._buffer.find(_HELLO)
            if self._skips and start < 0:
                del self._buffer[: -len(_HELLO)]
                return
            frame = None if self._skips else self._frame(start if start >= 0 else len(self._buffer))
            if frame is not None:
                yield frame
                continue
            if start < 0:
                return
            # A producer that died may have left part of a frame between its last complete frame and a HELLO.
            del self._buffer[:start]
            if len(self._buffer) < len(_HELLO) + NONCE_BYTES:
                return
            self._skips = False
            yield ForwardKind.HELLO, self._cut(len(_HELLO) + NONCE_BYTES)[len(_HELLO) :]

    def _frame(self, limit: int) -> tuple[ForwardKind, bytes] | None:
        if limit < _ITEM_HEAD.size or _HELLO.startswith(self._buffer[: len(_HELLO)]):
            return None
        kind, length, checksum = _ITEM_HEAD.unpack_from(self._buffer)
        if kind not in (ForwardKind.ITEM, ForwardKind.END) or length > _LARGEST_FRAME:
            raise LinkError(f"a frame of kind {kind} and {length} bytes")
        if limit < _ITEM_HEAD.size + length:
            return None
        body = self._cut(_ITEM_HEAD.size + length)[_ITEM_HEAD.size :]
        if zlib.crc32(body) != checksum:
            raise LinkError("a frame whose checksum does not match")
        return ForwardKind(kind), body

    def _cut(self, size: int) -> bytes:
        head = bytes(self._buffer[:size])
        del self._buffer[:size]
        return head


def read_item(body: bytes, spec: LinkSpec) -> tuple[int, dict[str, Any]]:
    """Return the slab number and the message header from the body of an ITEM frame.

    Raises:
        LinkError: if the body is malformed or the slab does not exist.
    """
    try:
        slab, header = unpack(body, strict_map_key=True)
    except ValueError as error:
        raise LinkError(f"an item that is not msgpack: {error}") from error
    if not isinstance(header, dict) or slab not in range(NO_SLAB, spec.slabs):
        raise LinkError(f"an item in slab {slab!r} of {spec.slabs}")
    return slab, header


class BackReader:
    """Splits the bytes that a producer receives into frames, skipping everything before its own WELCOME."""

    def __init__(self, nonce: bytes, slabs: int) -> None:
        self._buffer = bytearray()
        self._welcome = _WELCOME + nonce
        self._slabs = slabs
        self._welcomed = False

    def feed(self, data: bytes) -> Iterator[tuple[BackKind, int, bytes]]:
        """Yield each complete frame as (kind, slab, used slabs).

        In WELCOME, the second value is the number of untaken items.
        """
        self._buffer += data
        if not self._welcomed:
            start = self._buffer.find(self._welcome)
            size = len(self._welcome) + 4 + self._slabs
            if start < 0 or len(self._buffer) - start < size:
                return
            body = bytes(self._buffer[start + len(self._welcome) : start + size])
            del self._buffer[: start + size]
            self._welcomed = True
            yield BackKind.WELCOME, int.from_bytes(body[:4], "little"), body[4:]
        whole = len(self._buffer) // _BACK.size * _BACK.size
        frames = bytes(self._buffer[:whole])
        del self._buffer[:whole]
        for kind, slab in _BACK.iter_unpack(frames):
            yield BackKind(kind), slab, b""
