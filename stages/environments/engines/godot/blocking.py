"""A script's connection to one game: each request blocks until the answer arrives, without asyncio.

The pipeline uses `stages/environments/engines/transport.py` instead, which waits for several games at a time.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress

from headrace.process_tree import ProcessTree
from headrace.stages.environments.engines.process import describe_exit
from headrace.stages.environments.engines.transport import ADDRESS, HEADER

_CHUNK = 256 * 1024
_MOST_BYTES = 2**30
"""Maximum size of an answer in bytes. The addon never announces a greater length."""
_POLL_S = 0.05
_LAST_WORDS_S = 2.0
"""Seconds to wait for the game's process to exit after its connection has closed."""
_CLOSED = "the environment is closed, or its game has failed; create a new one"
_OWES = "the game has not answered the last request yet: call step_recv before you send anything else"
_UNASKED = "the game sent a message that was not requested"


class GodotEnvError(ConnectionError):
    """The game can't be started, does not answer, has closed, or sends invalid data."""


class BlockingLink:
    """The connection that a game opens, and the game's process if `command` starts it.

    Args:
        command: the program and its arguments; None if the user starts the game.
        port: the port to listen on.
        timeout_s: seconds to wait for the connection, and for each answer.

    Raises:
        GodotEnvError: if the port is taken, or the game does not connect in time.
    """

    def __init__(self, command: list[str] | None, port: int, timeout_s: float) -> None:
        self.process: ProcessTree | None = None
        self._port = port
        self._timeout_s = timeout_s
        self._buffer = bytearray(_CHUNK)
        self._have = 0
        """Number of bytes of an incomplete answer received so far. Between calls, it is above 0 only after an
        interrupt."""
        self._owes = False
        """True while a request is unanswered."""
        self._socket: socket.socket | None = None
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            self._listen(server)
            if command is not None:
                self._launch(command)
            try:
                self._socket = self._accepted(server)
            except BaseException:
                self.close()
                raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit_waiting(self._socket, timeout_s)
        if sys.platform != "win32":
            self._arrived = select.poll()
            self._arrived.register(self._socket, select.POLLIN)

    def exchange(self, content: bytes) -> bytes | bytearray:
        """Send a message and return the answer. Raises the same errors as `send` and `receive`."""
        self.send(content)
        return self.receive()

    @property
    def connection(self) -> socket.socket:
        """The open connection.

        Raises:
            GodotEnvError: if the connection is closed.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        return self._socket

    def send(self, content: bytes, is_answered: bool = True) -> None:
        """Send a message; `is_answered` is True if the game will answer it.

        Raises:
            GodotEnvError: if the game is gone, or has not answered the last message.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        if self._owes:
            raise GodotEnvError(_OWES)
        if self._unasked():
            self.close()
            raise GodotEnvError(_UNASKED)
        try:
            self._owes = is_answered
            self._socket.sendall(HEADER.pack(len(content)) + content)
        except OSError:
            raise self._gone() from None

    def say_goodbye(self, content: bytes, patience_s: float) -> None:
        """Wait for a pending answer, then send a last message. Raises the same errors as `send` and `receive`."""
        if self._owes and self._socket is not None:
            _limit_waiting(self._socket, patience_s)
            self.receive()
        self.send(content, is_answered=False)

    def receive(self) -> bytes | bytearray:
        """Wait for a message.

        Raises:
            GodotEnvError: if no message arrives in time, or the game is gone.
        """
        if self._socket is None:
            raise GodotEnvError(_CLOSED)
        if not self._owes:
            raise GodotEnvError("the game has no request to answer: call step_send before step_recv")
        while self._have < (wanted := self._wanted()):
            self._have += self._read(self._have)
        have, self._have, self._owes = self._have, 0, False
        if have > wanted:
            self.close()
            raise GodotEnvError(_UNASKED)
        return self._buffer[HEADER.size : wanted]

    def close(self, patience_s: float = 0.0) -> None:
        """Close the connection; kill the process if it does not exit within `patience_s`. Closing twice is allowed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
            self.process.kill_all()
            self.process.wait()

    def _unasked(self) -> bool:
        """Return True if an unrequested message has arrived, which would shift all later answers by one."""
        assert self._socket is not None
        if sys.platform == "win32":
            readable = bool(select.select([self._socket], [], [], 0)[0])
        else:
            readable = bool(self._arrived.poll(0))
        try:
            return readable and self._socket.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False  # the game is gone; `receive` reports this

    def _listen(self, server: socket.socket) -> None:
        if sys.platform == "win32":  # on Windows, the option below would allow binding to a port in use
            server.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((ADDRESS, self._port))
            server.listen(1)
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            what = (
                "is in use by another program: end that program, or pass another port=" if used else f"fails: {error}"
            )
            raise GodotEnvError(f"port {self._port} {what}") from error

    def _launch(self, command: list[str]) -> None:
        try:
            self.process = ProcessTree(command, shows=True, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise GodotEnvError(f"{command[0]} can't be started: {error.strerror}") from error

    def _accepted(self, server: socket.socket) -> socket.socket:
        server.settimeout(_POLL_S)
        latest = time.monotonic() + self._timeout_s
        while True:
            with suppress(TimeoutError):
                return server.accept()[0]
            code = None if self.process is None else self.process.poll()
            if code is not None:
                raise GodotEnvError(f"the game ended with {describe_exit(code)} before it connected")
            if time.monotonic() > latest:
                cure = (
                    "press Play in Godot's editor"
                    if self.process is None
                    else "does it read the port from its arguments?"
                )
                raise GodotEnvError(
                    f"no game connected to port {self._port} within {self._timeout_s:g} s; its main scene needs a Sync "
                    f"node with Control Mode 'Training'; {cure}"
                )

    def _read(self, have: int) -> int:
        assert self._socket is not None
        try:
            count = self._socket.recv_into(memoryview(self._buffer)[have:] if have else self._buffer)
        except (TimeoutError, BlockingIOError):
            self.close()
            raise GodotEnvError(
                f"the game has not answered within {self._timeout_s:g} s: it hangs, or an error in its scripts "
                "prevents an answer; GodotEnv.DEFAULT_TIMEOUT sets the limit"
            ) from None
        except OSError:
            count = 0
        if not count:
            raise self._gone()
        return count

    def _wanted(self) -> int:
        """Return the number of bytes in the answer, as far as it is known, and enlarge the buffer to hold them."""
        if self._have < HEADER.size:
            return HEADER.size
        (size,) = HEADER.unpack_from(self._buffer)
        if size > _MOST_BYTES:
            self.close()
            raise GodotEnvError(f"the game sent an invalid message: its length would be {size:,} bytes")
        if len(self._buffer) < HEADER.size + size + 1:  # one extra byte, to detect unrequested data
            self._buffer += bytes(HEADER.size + size + 1 - len(self._buffer))
        return int(HEADER.size + size)

    def _gone(self) -> GodotEnvError:
        code = None
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(_LAST_WORDS_S)
        self.close()
        how = "" if code is None else f"; it ended with {describe_exit(code)}"
        return GodotEnvError(f"the game has closed the connection{how}")


def _limit_waiting(connection: socket.socket, timeout_s: float) -> None:
    """Make the operating system time out reads, because Python's own timeout costs a second system call per read."""
    if sys.platform == "win32":
        connection.settimeout(timeout_s)
        return
    connection.setblocking(True)
    whole = int(timeout_s)
    limit = struct.pack("@ll", whole, int((timeout_s - whole) * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    # The addon sends a message's length separately: a wake-up for that would be wasted.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HEADER.size + 1)
