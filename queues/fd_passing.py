"""Hands sockets and shared memory to a process that was started before they were there.

`platform.child_options` is the other way, for what is there when the process is started. Windows needs neither:
its tickets are good for any process at any time.
"""

from __future__ import annotations

import array
import asyncio
import errno
import socket
import struct
from collections.abc import Mapping, Sequence

from headrace.queues.platform import Segment, Ticket, write_ticket

AT_ONCE = 200
"""Descriptors in one message; systems take about 250."""
_HEAD = struct.Struct("<II")
"""How many descriptors, and how many bytes of data."""
_WAITS = {errno.EAGAIN, getattr(errno, "ETOOMANYREFS", errno.EAGAIN)}
"""Too many descriptors are on their way to processes that have not taken them."""
_AGAIN_S = 0.01
_CHUNK = 1 << 16


async def hand_over(sock: socket.socket, things: Sequence[socket.socket | Segment], data: bytes) -> None:
    """Send data, and the things whose tickets are in it. It waits while the system takes no more.

    Args:
        sock: a stream of this kind of system, to a process that calls `take_over` as often as this is called.
        things: they may be closed here afterwards.
        data: any.

    Raises:
        ConnectionError: if the process is gone.
    """
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    descriptors = [int(write_ticket(thing, 0)) for thing in things]
    await loop.sock_sendall(sock, _HEAD.pack(len(descriptors), len(data)))
    for start in range(0, len(descriptors), AT_ONCE):
        some = array.array("i", descriptors[start : start + AT_ONCE])
        while not _sent(sock, some):  # noqa: ASYNC110 - nobody tells when the system takes more
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
    """Receive what one `hand_over` sent: the data, and this process's tickets by those that are in the data.

    Raises:
        EOFError: if there is nothing more, or the sender died in the midst of it.
    """
    head = sock.recv(_HEAD.size, socket.MSG_WAITALL)
    if len(head) < _HEAD.size:
        raise EOFError("nothing was handed over")
    (left, size), own = _HEAD.unpack(head), dict[Ticket, Ticket]()
    while left:
        some = min(left, AT_ONCE)
        theirs, ours, _, _ = socket.recv_fds(sock, some * array.array("i").itemsize, some)
        if not theirs:
            raise EOFError("not everything was handed over")
        if len(ours) != some:  # the system drops what there is no room for
            raise OSError(errno.EMFILE, "too many open files: not everything that was handed over could be taken")
        own.update(zip(array.array("i", theirs), ours, strict=True))
        left -= some
    data = bytearray()
    while len(data) < size and (chunk := sock.recv(min(_CHUNK, size - len(data)))):
        data += chunk
    if len(data) < size:
        raise EOFError("not everything was handed over")
    return bytes(data), own
