"""The parts that differ between operating systems: shared memory, and passing memory and sockets to child processes.

`HEADRACE_PLATFORM=plain` in the environment turns off Linux-only features, which lets tests show that nothing depends
on them; docs/platforms.md lists these features. `make windows` runs the Windows branches in Windows' Python under Wine.

No resource created here has a name that could outlive its processes. On most systems memory is an unnamed file, which
children receive as an open descriptor; on Windows it is a mapping that the system frees with the last handle. A killed
process therefore leaves nothing to clean up.
"""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import mmap
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence

from headrace.paths import on_linux
from headrace.startup_context import socket_pair

log = logging.getLogger(__name__)

_warned = False

Ticket = int | str | bytes
"""Plain data that a child process needs to open a socket or a segment."""


def poison_returned_slabs() -> bool:
    """Return True if returned slabs must be overwritten, to expose use after return (`HEADRACE_POISON=1`)."""
    return os.environ.get("HEADRACE_POISON") == "1"


class Segment:
    """A block of memory that several processes can map, made by `create_segment` or `open_segment`.

    Args:
        handle: an open file descriptor, which the segment owns; on Windows, the name of a mapping.
        size: the size in bytes.
    """

    def __init__(self, handle: int | str, size: int) -> None:
        self.handle = handle
        self.size = size

    def map(self) -> mmap.mmap:
        """Map the memory. The mapping stays valid as long as anything refers to it, even after the segment is closed.

        Raises:
            OSError: on Windows, if there is not enough memory.
        """
        if sys.platform == "win32":
            # The first process to map the memory creates it; the system then counts all of it as used, touched or not.
            # A sender waits for its receiver's WELCOME, so both have mapped the memory before it holds any data.
            try:
                return mmap.mmap(-1, self.size, tagname=str(self.handle))
            except OSError as error:
                cure = "enlarge the paging file, or lower pipeline.queues.slab_bytes"
                raise _no_room(error, self.size, f"Windows counts the entire queue as used memory: {cure}") from error
        return mmap.mmap(int(self.handle), self.size)

    def duplicate(self) -> Segment:
        """Return another handle to the same memory. The caller must close each handle separately."""
        return Segment(os.dup(self.handle) if isinstance(self.handle, int) else self.handle, self.size)

    def close(self) -> None:
        """Close the handle, but not the mappings. Closing twice is allowed."""
        if isinstance(self.handle, int) and self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


# Unnamed memory leaves nothing behind when a process is killed (docs/decisions/006).
def create_segment(size: int) -> Segment:
    """Create a zero-filled segment that can be passed to child processes.

    Raises:
        OSError: if there is not enough memory or disk space anywhere.
    """
    if sys.platform == "win32":
        return Segment(f"headrace-{os.getpid()}-{os.urandom(8).hex()}", size)
    descriptor = _anonymous_memory(size) if on_linux() else None
    return Segment(_temporary_file(size) if descriptor is None else descriptor, size)


def open_segment(ticket: Ticket, size: int) -> Segment:
    """Open the segment that the parent's ticket describes. Call this in the child."""
    assert not isinstance(ticket, bytes), "a socket's ticket, not a segment's"
    if isinstance(ticket, int):
        os.set_inheritable(ticket, False)  # a child would hold it open and hide this process's death
    return Segment(ticket, size)


def open_socket(ticket: Ticket) -> socket.socket:
    """Open the socket that the parent's ticket describes. Call this in the child."""
    if sys.platform == "win32":
        assert isinstance(ticket, bytes), "a segment's ticket, not a socket's"
        opened = socket.fromshare(ticket)
        try:
            opened.getpeername()
        except OSError:  # the ticket is for another process
            opened.close()
            raise
        return opened
    assert isinstance(ticket, int), "a segment's ticket, not a socket's"
    os.set_inheritable(ticket, False)  # as for segments
    return socket.socket(fileno=ticket)


def write_ticket(thing: socket.socket | Segment, child_pid: int) -> Ticket:
    """Return a child's ticket for a socket or segment, which must stay open here until the child has opened it.

    On Windows the ticket requires the child's process id, so send it through standard input, not on the command line.
    """
    if sys.platform == "win32":
        if isinstance(thing, Segment):
            return thing.handle
        try:
            return thing.share(child_pid)
        except OSError:
            log.debug("no ticket from process %d", child_pid, exc_info=True)
            return b""  # the child has died, which its link reports
    return _descriptor(thing)


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected stream sockets that send small messages without delay."""
    pair = socket_pair()
    for end in pair:
        # Needed on Windows, where asyncio does this only for sockets with an explicit protocol number.
        if end.family == socket.AF_INET:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return pair


def _descriptor(thing: socket.socket | Segment) -> int:
    if isinstance(thing, Segment):
        assert isinstance(thing.handle, int)
        return thing.handle
    return thing.fileno()


def _anonymous_memory(size: int) -> int | None:
    """Allocate memory outside every mounted file system, so no quota applies. Linux only."""
    if not hasattr(os, "memfd_create"):  # the C library is too old
        return None
    try:
        descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
    except OSError as error:  # a sandbox forbids the call
        if error.errno in (errno.EMFILE, errno.ENFILE):  # a file would fail too, but with another cause
            raise
        return None
    try:
        os.truncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise _no_room(error, size, _LIMITED) from error
    return descriptor


_LIMITED = "The limit on file sizes (ulimit -f) applies to shared memory as well: raise the limit"


def _no_room(error: OSError, size: int, why: str) -> OSError:
    return OSError(
        error.errno,
        f"{error.strerror}: can't create a queue of {size:,} bytes in shared memory. {why}, or run actors and learners "
        "in one process, with pipeline.hosts.actors.kind and pipeline.hosts.learners.kind: inline",
    )


def _temporary_file(size: int) -> int:
    """Create an unnamed file with `size` bytes allocated in advance, so that a full disk can't cause a SIGBUS later."""
    global _warned
    folder = tempfile.gettempdir()
    if not _warned:
        _warned = True
        log.warning("no shared memory (memfd): using files in %s, which may be slower", folder)
    try:
        with tempfile.TemporaryFile(prefix=f"headrace-{os.getpid()}-", dir=folder) as file:
            os.truncate(file.fileno(), size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # macOS
                for start in range(0, size, _CHUNK):
                    file.write(bytes(min(_CHUNK, size - start)))
                file.flush()
            return os.dup(file.fileno())
    except OSError as error:
        why = (
            _LIMITED if error.errno == errno.EFBIG else f"The queue would be in {folder}: set TMPDIR to another folder"
        )
        raise _no_room(error, size, why) from error


# Passing sockets and memory to a running process. On Windows only data is passed, because tickets work at any time.

AT_ONCE = 200
"""Maximum number of descriptors in one message; systems allow about 250."""
_HEAD = struct.Struct("<II")
"""Header of a message: the number of descriptors and the number of data bytes."""
_WAITS = {errno.EAGAIN, getattr(errno, "ETOOMANYREFS", errno.EAGAIN)}
"""Error codes that report too many descriptors in flight to processes that have not received them yet."""
_AGAIN_S = 0.01
_CHUNK = 1 << 16


async def hand_over(sock: socket.socket, things: Sequence[socket.socket | Segment], data: bytes) -> None:
    """Send data, and the sockets and segments whose tickets it contains. Wait while the system's buffer is full.

    Args:
        sock: a stream socket, to a process that calls `take_over` once for each call to this function.
        things: the sockets and segments; the caller may close them afterwards.
        data: any bytes.

    Raises:
        ConnectionError: if the process is gone.
    """
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    descriptors = [] if sys.platform == "win32" else [_descriptor(thing) for thing in things]
    await loop.sock_sendall(sock, _HEAD.pack(len(descriptors), len(data)))
    for start in range(0, len(descriptors), AT_ONCE):
        some = array.array("i", descriptors[start : start + AT_ONCE])
        while not _sent(sock, some):  # noqa: ASYNC110 - no event reports that the system takes more
            await asyncio.sleep(_AGAIN_S)
    await loop.sock_sendall(sock, data)


def _sent(sock: socket.socket, descriptors: array.array[int]) -> bool:
    try:
        socket.send_fds(sock, [descriptors.tobytes()], descriptors.tolist())
    except OSError as error:
        if error.errno in _WAITS:
            return False
        raise
    return True


def take_over(sock: socket.socket) -> tuple[bytes, Mapping[Ticket, Ticket]]:
    """Receive what one call to `hand_over` sent: the data, and a map from its tickets to this process's tickets.

    Raises:
        EOFError: if the stream has ended, or the sender died in the middle of a message.
        ConnectionError: if the sender has died.
    """
    head = sock.recv(_HEAD.size, socket.MSG_WAITALL)
    if len(head) < _HEAD.size:
        raise EOFError("no descriptors were passed")
    (left, size), tickets = _HEAD.unpack(head), dict[Ticket, Ticket]()
    while left:
        some = min(left, AT_ONCE)
        theirs, ours, _, _ = socket.recv_fds(sock, some * array.array("i").itemsize, some)
        if not theirs:
            raise EOFError("some descriptors were not passed")
        if len(ours) != some:  # the system drops descriptors beyond the limit
            raise OSError(errno.EMFILE, "too many open files: some descriptors could not be received")
        tickets.update(zip(array.array("i", theirs), ours, strict=True))
        left -= some
    data = bytearray()
    while len(data) < size and (chunk := sock.recv(min(_CHUNK, size - len(data)))):
        data += chunk
    if len(data) < size:
        raise EOFError("some descriptors were not passed")
    return bytes(data), tickets
