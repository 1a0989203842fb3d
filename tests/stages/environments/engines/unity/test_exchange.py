"""The server that Unity calls, with calls made by hand."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack, asynccontextmanager, closing
from typing import TypeAlias

import grpc
import grpc.aio
import pytest

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.transport import ConnectionClosed
from headrace.stages.environments.engines.unity.exchange import GrpcTransport
from headrace.stages.environments.engines.unity.messages import EXCHANGE

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise two channels of one process share a connection
)
MIB = 2**20
Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


def greet(message: bytes) -> bytes | None:
    return b"hello" if message == b"greeting" else None


def asks(message: bytes) -> bool:
    return message not in (b"", b"stop")


def make_server(port: int = 0, kind: type[GrpcTransport] = GrpcTransport, listen: str = "localhost") -> GrpcTransport:
    return kind(port, 10 * MIB, greet, asks, listen)


@asynccontextmanager
async def calling(port: int, host: str = "localhost") -> AsyncIterator[Call]:
    """A connection of its own."""
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=OPTIONS) as channel:
        yield channel.unary_unary(EXCHANGE)


@asynccontextmanager
async def listening(kind: type[GrpcTransport] = GrpcTransport) -> AsyncIterator[tuple[GrpcTransport, int]]:
    server = make_server(kind=kind)
    await server.start("worker 7", "Choose another.")
    yield server, server.port
    await server.close()


@asynccontextmanager
async def connected(kind: type[GrpcTransport] = GrpcTransport) -> AsyncIterator[tuple[GrpcTransport, Call]]:
    """A server and one who has greeted it."""
    async with listening(kind) as (server, port), calling(port) as call:
        assert await call(b"greeting") == b"hello"
        yield server, call


async def test_a_call_is_received_and_its_answer_goes_back():
    async with connected() as (server, call):
        waiting = call(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        assert await waiting == b"actions"


async def test_a_lost_connection_wakes_a_sender_that_waits():
    gone = asyncio.Event()

    class Watched(GrpcTransport):
        def interrupt(self, error: Exception) -> None:
            super().interrupt(error)
            gone.set()

    async with connected(Watched) as (server, call):
        waiting = call(b"agents")
        await server.receive()
        waiting.cancel()
        await gone.wait()
        server.send(b"actions")
        with pytest.raises(ConnectionClosed):
            await server.receive()
        await refused(call(b"a new one, which is not who was to be answered"), "the worker's Unity has disconnected")


async def test_closing_lets_the_last_answer_leave():
    async with connected() as (server, call):
        waiting = call(b"agents")
        await server.receive()
        server.send_farewell(b"bye")
        await server.close()
        await server.close()
        assert await waiting == b"bye"


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
async def test_a_port_in_use_at_any_address_is_refused(family, address):
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with closing(socket.socket(family)) as other:
        other.bind((address, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            GameRefused, match=rf"worker 7 can't listen on port {port}: another program is using it\. Ch"
        ):
            await make_server(port).start("worker 7", "Choose another.")


async def test_a_released_port_can_be_reused_immediately():
    async with listening() as (server, port), calling(port) as call:
        await call(b"greeting")
        waiting = call(b"agents")
        await server.receive()
        server.send_farewell(b"bye")
        await waiting
        await server.close()
    second = make_server(port)
    await second.start("worker 7", "Choose another.")
    assert second.port == port
    await second.close()


async def test_a_second_unity_is_refused_by_name_while_the_first_continues(caplog):
    async with listening() as (server, port), calling(port) as first, calling(port) as second:
        await first(b"greeting")
        waiting = first(b"one")
        await server.receive()
        for message in (b"greeting", b"two", b""):
            await refused(second(message), r"another Unity is already connected to the worker, from .*:\d+; close that")
        server.send(b"yours")
        assert await waiting == b"yours"
        await refused(second(b"between two calls of the first"), "another Unity is already connected")
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.name == "headrace.stages.environments.engines.unity.exchange"
    ]
    assert re.match(r"Port \d+ refused a call from \S+:\d+: another Unity is already connected to the worker", line)


async def test_a_caller_that_only_greets_does_not_occupy_the_port():
    async with listening() as (server, port), calling(port) as silent, calling(port) as unity:
        assert await silent(b"greeting") == await unity(b"greeting") == b"hello"
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        await refused(silent(b"late"), "another Unity is already connected")
        server.send(b"actions")
        assert await waiting == b"actions"


async def test_a_first_message_that_is_not_a_greeting_is_refused():
    async with listening() as (server, port), calling(port) as stranger, calling(port) as unity:
        for message in (b"", b"agents", b"\xff" * 1000):
            await refused(stranger(message), "not a greeting", grpc.StatusCode.INVALID_ARGUMENT)
        assert "was refused: the caller's first message is not a greeting" in server.refused
        await unity(b"greeting")
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        await waiting


async def test_a_connection_lost_in_the_middle_of_a_message_is_noticed():
    async with (
        listening() as (server, port),
        grpc.aio.insecure_channel(f"localhost:{port}", options=OPTIONS) as channel,
    ):
        call = channel.unary_unary(EXCHANGE)
        await call(b"greeting")
        waiting = call(b"agents")
        await server.receive()
        server.send(b"actions")
        await waiting
        half = channel.stream_unary(EXCHANGE)()
        with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
            await channel.unary_unary("/any/thing")(b"to know that the half one has arrived, which was sent before")
        half.cancel()
        with pytest.raises(ConnectionClosed):
            await server.receive()


RUBBISH = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "garbage": bytes(range(256)) * 40,
    "HTTP/2 and then garbage": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 40,
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
@pytest.mark.parametrize("left", ["open", "closed"])
async def test_connections_that_are_not_calls_are_harmless(rubbish, left):
    async with listening() as (server, port), calling(port) as unity:
        with ExitStack() as strangers:
            for moment in (b"greeting", b"agents", b"agents again"):
                for _ in range(5):
                    stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
                    stranger.sendall(rubbish)
                    if left == "closed":
                        stranger.close()
                waiting = unity(moment)
                if moment != b"greeting":
                    assert await server.receive() == moment
                    server.send(b"actions")
                assert await waiting in (b"hello", b"actions")


async def refused(
    call: Awaitable[bytes], why: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
) -> None:
    """The call is refused, for the caller to read."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code
    assert re.match(
        rf"Port \d+ refuses the call from (127\.0\.0\.1|\[::1\]):\d+: .*{why}", caught.value.details() or ""
    )
