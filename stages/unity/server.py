"""The gRPC server that Unity calls: one method, whose responses are commands to Unity.

Unity calls and waits for the response. So at most one call is unanswered at any time, and only Unity's next call
follows a response.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from contextlib import closing, suppress

import grpc
import grpc.aio

from stages.unity.errors import PortUnusable, UnityRefused
from stages.unity.messages import EXCHANGE

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # otherwise two servers on one port would share its calls at random
)
_ADDRESSES = ((socket.AF_INET6, "::", "[::]"), (socket.AF_INET, "0.0.0.0", "0.0.0.0"))
"""`localhost`, which Unity calls, is either of these; a machine may lack the first."""
_FLUSH_S = 5.0
"""Time for the last answer to leave."""


class ConnectionLost(Exception):
    """Unity's connection was lost while its call waited for an answer."""


class _Call:
    """A call from Unity that waits for its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def settle(self, response: bytes) -> bool:
        """Answer; returns False if the caller is gone."""
        if self.answer.done():
            return False
        self.answer.set_result(response)
        return True


class ExchangeServer:
    """Receives Unity's calls as bytes, one at a time.

    Args:
        port: to listen on; 0 for any free one.
        name: name of the worker, for errors.
        cure: advice for the error of a port in use.
    """

    def __init__(self, port: int, name: str, cure: str) -> None:
        self._wanted = port
        self._name = name
        self._cure = cure
        self._server: grpc.aio.Server | None = None
        self._call: _Call | None = None
        self._news = asyncio.Event()
        self._interruption: Exception | None = None
        self._farewell: bytes | None = None

    async def start(self) -> int:
        """Listen.

        Returns:
            The port.

        Raises:
            UnityRefused: if the port is in use, or not permitted.
        """
        self._check_port()
        service, method = EXCHANGE[1:].split("/")
        handler = grpc.unary_unary_rpc_method_handler(self._exchange)  # without (de)serializers: bytes
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self._server = server
        port = self._bind(server)
        await server.start()
        return port

    def _check_port(self) -> None:
        """Try to bind the port: gRPC's own error has no cause, and is missing where one address of two is free."""
        if not 0 <= self._wanted <= 65_535:
            raise UnityRefused(f"{self._name}: {self._wanted} isn't a port, which is at most 65535; {self._cure}")
        for family, address, _ in _ADDRESSES:
            try:
                with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
                    if sys.platform != "win32":  # there it would allow a port in use; here only a closed one
                        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    trial.bind((address, self._wanted))
            except OSError as error:
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    continue
                raise PortUnusable(self._unusable(error)) from error

    def _unusable(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return f"{self._name} can't listen on port {self._wanted}: another program uses it. {self._cure}"
        return f"{self._name} can't listen on port {self._wanted}: {error.strerror}. {self._cure}"

    def _bind(self, server: grpc.aio.Server) -> int:
        for _, _, address in _ADDRESSES:
            try:
                if port := server.add_insecure_port(f"{address}:{self._wanted}"):
                    return int(port)
            except RuntimeError:  # gRPC gives no cause
                continue
        raise PortUnusable(self._unusable(OSError(errno.EADDRINUSE, "in use")))

    async def receive(self) -> bytes:
        """Return the unanswered call, or wait for the next one; there is no timeout, and cancellation loses nothing.

        Raises:
            ConnectionLost: if the connection was lost while a call waited for its answer.
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
            raise AssertionError("there is no call to answer")
        raise self._interruption or ConnectionLost

    def interrupt(self, reason: Exception) -> None:
        """Let `receive` raise `reason` once no call waits; later reasons are ignored."""
        self._interruption = self._interruption or reason
        self._news.set()

    def send_farewell(self, response: bytes) -> bool:
        """Answer the waiting call, and all later ones, with `response`; returns True if a call waited."""
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

    async def _exchange(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self._farewell is not None:
            self._news.set()
            return self._farewell
        if self._call is not None or self._interruption is not None:  # a second program
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._name} is connected with another Unity already: close it, or use another port",
            )
        call = self._call = _Call(request)
        self._news.set()
        try:
            return await call.answer
        except asyncio.CancelledError:  # gRPC cancels the call when the connection is lost
            if self._call is call:
                self._call = None
                self.interrupt(ConnectionLost())
            raise
