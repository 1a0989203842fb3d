"""The transport for Unity: a gRPC server with one method, whose responses are commands to Unity.

Unity calls and waits for the response, so at most one call is unanswered at any time. A server belongs to one caller:
the last to send a greeting, once it has received ours and requests its first command over the same connection. From
then on, the server refuses other callers before it reads their messages.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.engines.errors import GameRefused, PortTaken
from headrace.stages.environments.engines.transport import ConnectionClosed, TooLarge, Transport
from headrace.stages.environments.engines.unity.messages import EXCHANGE
from headrace.stages.listening import add_grpc_port, find_port
from headrace.startup_context import shortened

log = logging.getLogger(__name__)

_CONNECTIONS = 64
"""Maximum number of connections, to keep silent callers from using up the file descriptors."""
_SILENCE_MS = 20_000
"""Milliseconds after which a connection without HTTP/2 data is closed."""
_FLUSH_S = 5.0
"""Seconds to wait for the last answer to be sent."""
_ATTEMPTS = 5
"""Number of attempts to listen on a port that was free a moment before."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class _CallRefused(Exception):
    """A call is refused.

    Args:
        why: the reason, which ends a sentence about the call.
        code: the status for the caller.
    """

    def __init__(self, why: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(why)
        self.code = code


class GrpcTransport(Transport):
    """A transport in which a message from Unity is a call, and `send` answers the call; one call at a time.

    Args:
        port: the port to listen on; 0 for any free one.
        max_bytes: maximum size of a message, in either direction.
        greet: returns our greeting in answer to a caller's; None for a message that is not a greeting.
        asks: returns True for the message that requests a greeted caller's first command.
        listen: see `env_settings.listen`.

    Attributes:
        greeting: the owner's greeting, or the last one while the server has no owner; None if there was no greeting.
        refused: the last refusal, as a sentence; empty if there was none.
    """

    def __init__(
        self,
        port: int,
        max_bytes: int,
        greet: Callable[[bytes], bytes | None],
        asks: Callable[[bytes], bool],
        listen: str = LOCALHOST,
    ) -> None:
        super().__init__(port, max_bytes)
        self.greeting: bytes | None = None
        self.refused = ""
        self._greet = greet
        self._asks = asks
        self._listen = listen
        self._owner: str | None = None
        """Address of the caller that owns the server, or will own it with its first request."""
        self._is_owned = False
        self._server: grpc.aio.Server | None = None
        self._response: asyncio.Future[bytes] | None = None
        """Gets the answer to the call that waits for one; None if no call waits."""
        self._farewell: bytes | None = None

    async def start(self, name: str, cure: str) -> None:
        """See `Transport`."""
        if not 0 <= self.port <= 65_535:
            raise GameRefused(f"{name}: {self.port} is not a port; the maximum is 65535; {cure}")
        for _ in range(_ATTEMPTS):
            try:
                port, hosts = find_port(self._listen, self.port)
            except ValueError as error:
                raise GameRefused(f"{name} can't listen: {error}") from error
            except OSError as error:
                raise self._unusable(error, name, cure) from error
            server = self._make_server()
            if add_grpc_port(server, port, hosts):  # otherwise another program was quicker
                self._server = server
                await server.start()
                self.port = port
                return
        raise self._unusable(OSError(errno.EADDRINUSE, "another program is using it"), name, cure)

    def _unusable(self, error: OSError, name: str, cure: str) -> GameRefused:
        problem = f"{name} can't listen on port {self.port}: {error.strerror}."
        if error.errno == errno.EADDRNOTAVAIL:
            return GameRefused(f"{problem} Set env_settings.listen to one of its addresses, to localhost or to all")
        return PortTaken(f"{problem} {cure}")

    def _make_server(self) -> grpc.aio.Server:
        service, method = EXCHANGE[1:].split("/")
        # Without (de)serializers, messages are bytes. The request is a stream of one message, read once its caller is
        # known.
        handler = grpc.stream_unary_rpc_method_handler(self._handle)
        options = (
            ("grpc.max_receive_message_length", self._max_bytes),
            ("grpc.max_send_message_length", self._max_bytes),
            ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", _SILENCE_MS),
            ("grpc.so_reuseport", 0),  # otherwise two servers on one port would share its calls randomly
        )
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        return server

    def send(self, content: bytes) -> None:
        """See `Transport`."""
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_result(content)

    def send_farewell(self, content: bytes) -> None:
        """Answer the waiting call, and all later ones, with `content`."""
        self._farewell = content
        self.send(content)

    async def close(self) -> None:
        """Flush the answers, and stop listening; closing twice is allowed."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_FLUSH_S)

    async def _handle(self, _: Any, context: _Context) -> bytes:
        caller = unquote(context.peer()).partition(":")[2]  # as `127.0.0.1:50424`, from gRPC's `ipv4:127.0.0.1:50424`
        try:
            return await self._exchange(caller, context)
        except _CallRefused as refusal:
            level = logging.DEBUG if self.refused else logging.WARNING  # only the first refusal is a warning
            self.refused = f"The call from {caller} was refused: {refusal}."
            log.log(level, "Port %d refused a call from %s: %s", self.port, caller, refusal)
            await context.abort(refusal.code, shortened(f"Port {self.port} refuses the call from {caller}: {refusal}"))
            raise AssertionError("abort raises") from None

    async def _exchange(self, caller: str, context: _Context) -> bytes:
        self._admit(caller)
        request = b""
        if self._farewell is None:
            request = await self._arrived(caller, context)
            self._admit(caller)  # the state may have changed while the message arrived
        if self._farewell is not None:
            return self._farewell
        if not self._is_owned:
            ours = self._greet(request)
            if ours is not None:
                self._owner, self.greeting = caller, request
                self._connected.set()
                return ours
            if caller != self._owner:
                raise _CallRefused(
                    "the caller's first message is not a greeting, or another Unity has sent one since",
                    grpc.StatusCode.INVALID_ARGUMENT,
                )
            if not self._asks(request):
                raise _CallRefused("the caller sent a greeting but no request", grpc.StatusCode.INVALID_ARGUMENT)
            self._is_owned = True
        response = self._response = asyncio.get_running_loop().create_future()
        self._take(request)
        try:
            return bytes(await response)
        except asyncio.CancelledError:  # gRPC cancels the call when the connection is lost
            if self._response is response:
                self._messages.clear()
                self.interrupt(ConnectionClosed())
            raise

    def _admit(self, caller: str) -> None:
        """Refuse a caller that does not own the server, and can't become its owner."""
        if self._is_owned and caller != self._owner:
            raise _CallRefused(
                f"another Unity is already connected to the worker, from {self._owner}; close that one, or use another "
                "port"
            )
        if self._farewell is not None:
            return
        if self._error is not None:
            raise _CallRefused(
                "the worker's Unity has disconnected, and the worker accepts no other until it is restarted"
            )
        if self._response is not None:
            raise _CallRefused("an earlier call of this Unity is still waiting for its answer")

    async def _arrived(self, caller: str, context: _Context) -> bytes:
        """Read the caller's message.

        Raises:
            _CallRefused: if the message is incomplete or too large.
        """
        try:
            request = await context.read()
        except asyncio.CancelledError:
            self._lose(caller, ConnectionClosed(in_answer=True))
            raise
        if request is not grpc.aio.EOF:
            return bytes(request)
        # The connection is lost, or gRPC has refused the message, and has then forgotten the caller.
        if context.peer():
            self._lose(caller, ConnectionClosed(in_answer=True))
            raise _CallRefused("the caller sent an incomplete message", grpc.StatusCode.INVALID_ARGUMENT)
        self._lose(caller, TooLarge())
        raise _CallRefused(
            f"the caller's message is larger than {self._max_bytes:,} bytes", grpc.StatusCode.RESOURCE_EXHAUSTED
        )

    def _lose(self, caller: str, reason: Exception) -> None:
        if self._is_owned and caller == self._owner:
            self.interrupt(reason)
