"""The gRPC server for Unity: one method, whose responses are commands to Unity.

Unity calls and waits for the response, so at most one call is unanswered at any time. A server belongs to one caller:
the first to complete the handshake, in which the caller sends a greeting, receives ours, and requests its first command
over the same connection. The server refuses other callers before it reads their messages.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.unity.errors import PortUnusable, UnityRefused
from headrace.stages.environments.unity.messages import EXCHANGE
from headrace.stages.listening import add_grpc_port, find_port

log = logging.getLogger(__name__)

_CONNECTIONS = 64
"""Maximum number of connections, to keep silent callers from using up the file descriptors."""
_SILENCE_MS = 20_000
"""Milliseconds after which a connection without HTTP/2 data is closed."""
_GREETINGS = 256
"""Maximum number of callers that have sent a greeting and not called again."""
_FLUSH_S = 5.0
"""Seconds to wait for the last answer to be sent."""
_ATTEMPTS = 5
"""Number of attempts to listen on a port that was free a moment before."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class ConnectionLost(Exception):
    """Unity's connection was lost while its call waited for an answer, or in the middle of its message."""


class MessageTooLarge(Exception):
    """Unity's message is larger than the limit, and was not read."""


class _Refused(Exception):
    """A call is refused.

    Args:
        why: the reason, which ends a sentence that begins with the server's name.
        code: the status for the caller.
    """

    def __init__(self, why: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(why)
        self.code = code


class _Call:
    """A call from Unity that is waiting for its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def settle(self, response: bytes) -> bool:
        """Send the answer; return False if the caller is gone."""
        if self.answer.done():
            return False
        self.answer.set_result(response)
        return True


class ExchangeServer:
    """Receives Unity's calls as bytes, one at a time.

    Args:
        port: the port to listen on; 0 for any free one.
        name: the worker's name, used in errors.
        cure: the remedy if the port is in use; the error message ends with it.
        greet: returns our greeting in answer to a caller's; None for a message that is not a greeting.
        asks: returns True for the message that requests a greeted caller's first command.
        max_bytes: maximum size of a message, in either direction.
        listen: see `env_settings.listen`.

    Attributes:
        name: the worker's name, used in errors. It may be changed.
        greeting: the owner's greeting, or the last caller's greeting before there is an owner; None if there was no
            greeting.
        refused: the last refusal, as a sentence; empty if there was none.
    """

    def __init__(
        self,
        port: int,
        name: str,
        cure: str,
        greet: Callable[[bytes], bytes | None],
        asks: Callable[[bytes], bool],
        max_bytes: int,
        listen: str = LOCALHOST,
    ) -> None:
        self.name = name
        self.greeting: bytes | None = None
        self.refused = ""
        self._wanted = port
        self._cure = cure
        self._greet = greet
        self._asks = asks
        self._max_bytes = max_bytes
        self._listen = listen
        self._refusals = 0
        self._owner: str | None = None
        """Address of the caller that the server belongs to."""
        self._greeted: dict[str, bytes] = {}
        """Callers' greetings, keyed by address, until the server belongs to one of the callers."""
        self._server: grpc.aio.Server | None = None
        self._call: _Call | None = None
        self._reading = 0
        """Number of messages that are arriving."""
        self._news = asyncio.Event()
        self._interruption: Exception | None = None
        self._farewell: bytes | None = None

    async def start(self) -> int:
        """Start listening.

        Returns:
            The port.

        Raises:
            UnityRefused: if the port is in use, or not permitted, or this machine does not have the address.
        """
        if not 0 <= self._wanted <= 65_535:
            raise UnityRefused(f"{self.name}: {self._wanted} is not a port; the maximum is 65535; {self._cure}")
        for _ in range(_ATTEMPTS):
            try:
                port, hosts = find_port(self._listen, self._wanted)
            except ValueError as error:
                raise UnityRefused(f"{self.name} can't listen: {error}") from error
            except OSError as error:
                raise self._unusable(error) from error
            server = self._make_server()
            if add_grpc_port(server, port, hosts):  # otherwise another program was quicker
                self._server = server
                await server.start()
                return port
        raise self._unusable(OSError(errno.EADDRINUSE, "another program is using it"))

    def _unusable(self, error: OSError) -> UnityRefused:
        problem = f"{self.name} can't listen on port {self._wanted}: {error.strerror}."
        if error.errno == errno.EADDRNOTAVAIL:
            return UnityRefused(f"{problem} Set env_settings.listen to one of its addresses, to localhost or to all")
        return PortUnusable(f"{problem} {self._cure}")

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

    @property
    def between_calls(self) -> bool:
        """True if all of Unity's calls so far are answered, and no call is arriving."""
        in_call = self._call is not None or self._reading or self._interruption is not None
        return self._owner is not None and not in_call

    async def receive(self) -> bytes:
        """Return the unanswered call, or wait for the next one. There is no timeout, and cancellation loses no call.

        Raises:
            ConnectionLost: if the connection was lost while a call waited for its answer.
            MessageTooLarge: if Unity's message was above the limit.
            Exception: the reason passed to `interrupt`.
        """
        while self._call is None:
            if self._interruption is not None:
                raise self._interruption
            self._news.clear()
            await self._news.wait()
        return self._call.request

    def answer(self, response: bytes) -> None:
        """Answer the waiting call.

        Raises:
            ConnectionLost: if the connection was lost.
            Exception: the reason passed to `interrupt`.
        """
        call, self._call = self._call, None
        if call is not None and call.settle(response):
            return
        if call is None and self._interruption is None:
            raise AssertionError("no call is waiting for an answer")
        raise self._interruption or ConnectionLost

    def interrupt(self, reason: Exception) -> None:
        """Make `receive` raise `reason` once no call waits; later reasons are ignored."""
        self._interruption = self._interruption or reason
        self._news.set()

    def send_farewell(self, response: bytes) -> bool:
        """Answer the waiting call, and all later ones, with `response`; return True if a call was waiting."""
        self._farewell = response
        call, self._call = self._call, None
        return call is not None and call.settle(response)

    async def farewell_delivered(self, timeout_s: float) -> None:
        """Wait until a call has been answered with the farewell, for at most `timeout_s`."""
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    async def close(self) -> None:
        """Flush the answers, and stop listening; closing twice is allowed."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_FLUSH_S)

    async def _handle(self, _: Any, context: _Context) -> bytes:
        caller = unquote(context.peer()).partition(":")[2]  # as `127.0.0.1:50424`, from gRPC's `ipv4:127.0.0.1:50424`
        try:
            return await self._exchange(caller, context)
        except _Refused as refusal:
            self._note(caller, refusal)
            await context.abort(refusal.code, f"{self.name} refuses the call from {caller}: {refusal}")
            raise AssertionError("abort raises") from None

    async def _exchange(self, caller: str, context: _Context) -> bytes:
        self._admit(caller)
        request = b""
        if self._farewell is None:
            request = await self._arriving(caller, context)
            self._admit(caller)  # the state may have changed while the message arrived
        if self._farewell is not None:
            self._news.set()
            return self._farewell
        if self._owner is None:
            ours = self._greet(request)
            if ours is not None:
                self._remember(caller, request)
                return ours
            if caller not in self._greeted:
                raise _Refused("the caller's first message is not a greeting", grpc.StatusCode.INVALID_ARGUMENT)
            if not self._asks(request):
                raise _Refused("the caller sent a greeting but no request", grpc.StatusCode.INVALID_ARGUMENT)
            self._owner, self.greeting = caller, self._greeted[caller]
            self._greeted = {}
        call = self._call = _Call(request)
        self._news.set()
        try:
            return await call.answer
        except asyncio.CancelledError:  # gRPC cancels the call when the connection is lost
            if self._call is call:
                self._call = None
                self.interrupt(ConnectionLost())
            raise

    def _admit(self, caller: str) -> None:
        """Refuse a caller that does not own the server, and can't become its owner."""
        if self._owner is not None and caller != self._owner:
            raise _Refused(
                f"another Unity is already connected to the worker, from {self._owner}; close that one, or use another "
                "port"
            )
        if self._farewell is not None:
            return
        if self._interruption is not None:
            raise _Refused("the worker's Unity has disconnected, and the worker accepts no other until it is restarted")
        if self._call is not None:
            raise _Refused("an earlier call of this Unity is still waiting for its answer")

    async def _arriving(self, caller: str, context: _Context) -> bytes:
        self._reading += 1
        try:
            return await self._read(caller, context)
        finally:
            self._reading -= 1

    async def _read(self, caller: str, context: _Context) -> bytes:
        try:
            request = await context.read()
        except asyncio.CancelledError:
            self._lose(caller, ConnectionLost())
            raise
        if request is not grpc.aio.EOF:
            return bytes(request)
        # The connection is lost, or gRPC has refused the message, and has then forgotten the caller.
        if context.peer():
            self._lose(caller, ConnectionLost())
            raise _Refused("the caller sent an incomplete message", grpc.StatusCode.INVALID_ARGUMENT)
        self._lose(caller, MessageTooLarge())
        raise _Refused(
            f"the caller's message is larger than {self._max_bytes:,} bytes", grpc.StatusCode.RESOURCE_EXHAUSTED
        )

    def _lose(self, caller: str, reason: Exception) -> None:
        if caller == self._owner:
            self.interrupt(reason)

    def _note(self, caller: str, refusal: _Refused) -> None:
        """Store a refusal, and log the first, the tenth, the hundredth and so on."""
        self._refusals += 1
        self.refused = f"The call from {caller} was refused: {refusal}."
        level = logging.WARNING if str(self._refusals).strip("0") == "1" else logging.DEBUG
        count = f" ({self._refusals} so far)" if self._refusals > 1 else ""
        log.log(level, "%s refused a call from %s%s: %s", self.name, caller, count, refusal)

    def _remember(self, caller: str, greeting: bytes) -> None:
        while len(self._greeted) >= _GREETINGS:
            del self._greeted[next(iter(self._greeted))]
        self._greeted[caller] = self.greeting = greeting
