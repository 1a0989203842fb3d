"""The server that Unity calls, with calls made by hand."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import ExitStack, asynccontextmanager, closing
from typing import TypeAlias

import grpc
import grpc.aio
import pytest

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.transport import ConnectionClosed, TooLarge
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


async def test_messages_up_to_the_limit_are_taken_in_both_directions():
    large = bytes(10 * MIB)
    async with connected() as (server, call):
        waiting = call(large)
        assert await server.receive() == large
        server.send(large)
        assert await waiting == large


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


async def test_an_interruption_wakes_a_waiting_receive():
    async with connected() as (server, _):
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_failure(server))
            await asyncio.sleep(0)
            server.interrupt(ConnectionError("it died"))
            server.interrupt(ConnectionError("too late"))
        assert str(waiting.result()) == "it died"


async def test_a_call_that_came_before_an_interruption_is_still_received():
    arrived = asyncio.Event()

    class Watched(GrpcTransport):
        def _take(self, content: bytes) -> bool:
            arrived.set()
            return super()._take(content)

    async with connected(Watched) as (server, call):
        waiting = call(b"last words")
        await arrived.wait()
        server.interrupt(ConnectionError("it died"))
        assert await server.receive() == b"last words"
        server.send(b"heard")
        await waiting


async def test_a_cancelled_receive_loses_nothing():
    async with connected() as (server, call):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await server.receive()
        waiting = call(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        await waiting


async def test_after_a_farewell_every_call_is_answered_with_it():
    async with connected() as (server, call):
        waiting = call(b"one")
        await server.receive()
        server.send_farewell(b"bye")
        assert await waiting == await call(b"two") == b"bye"


async def test_closing_lets_the_last_answer_leave():
    async with connected() as (server, call):
        waiting = call(b"agents")
        await server.receive()
        server.send_farewell(b"bye")
        await server.close()
        await server.close()
        assert await waiting == b"bye"


async def test_other_methods_do_not_exist():
    async with listening() as (_, port), grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/communicator_objects.UnityToExternalProto/Other")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
async def test_a_port_in_use_is_refused_whatever_address_it_is_used_on(family, address):
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


async def test_a_port_that_was_just_given_up_can_be_used_at_once():
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


async def test_a_number_that_is_no_port_is_refused():
    with pytest.raises(GameRefused, match="70000 is not a port"):
        await make_server(70_000).start("worker 7", "Choose another.")


async def test_a_second_unity_is_refused_and_named_and_the_first_goes_on(caplog):
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


async def test_a_second_unitys_message_is_not_even_read():
    async with listening() as (server, port), calling(port) as first, calling(port) as second:
        await first(b"greeting")
        waiting = first(b"one")
        await server.receive()
        await refused(second(bytes(11 * MIB)), "another Unity is already connected")
        server.send(b"yours")
        await waiting


async def test_whoever_greets_and_says_no_more_owns_nothing():
    async with listening() as (server, port), calling(port) as silent, calling(port) as unity:
        assert await silent(b"greeting") == await unity(b"greeting") == b"hello"
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        await refused(silent(b"late"), "another Unity is already connected")
        server.send(b"actions")
        assert await waiting == b"actions"


async def test_whoever_greets_and_then_stops_or_sends_garbage_owns_nothing():
    async with listening() as (server, port), calling(port) as stranger, calling(port) as unity:
        for message in (b"stop", b""):
            await stranger(b"greeting")
            await refused(stranger(message), "a greeting but no request", grpc.StatusCode.INVALID_ARGUMENT)
        await unity(b"greeting")
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        await waiting


async def test_one_may_greet_again_before_the_first_call():
    async with connected() as (server, call):
        assert await call(b"greeting") == b"hello"
        waiting = call(b"agents")
        assert await server.receive() == b"agents"
        assert server.greeting == b"greeting"
        server.send(b"actions")
        await waiting


async def test_what_is_no_greeting_is_refused_and_does_no_harm():
    async with listening() as (server, port), calling(port) as stranger, calling(port) as unity:
        for message in (b"", b"agents", b"\xff" * 1000):
            await refused(stranger(message), "not a greeting", grpc.StatusCode.INVALID_ARGUMENT)
        assert "was refused: the caller's first message is not a greeting." in server.refused
        await unity(b"greeting")
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        await waiting


@pytest.mark.lengthy
async def test_a_strangers_message_above_the_limit_is_refused_and_does_no_harm():
    async with listening() as (server, port), calling(port) as stranger, calling(port) as unity:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger(bytes(11 * MIB))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await unity(b"greeting")
        waiting = unity(b"agents")
        assert await server.receive() == b"agents"
        server.send(b"actions")
        await waiting


@pytest.mark.lengthy
async def test_a_message_above_the_limit_of_the_one_who_owns_the_port_is_told_from_a_lost_connection():
    async with connected() as (server, call):
        waiting = call(b"agents")
        await server.receive()
        server.send(b"actions")
        await waiting
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(11 * MIB))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(TooLarge):
            await server.receive()


HalfCall: TypeAlias = "grpc.aio.StreamUnaryCall[bytes, bytes]"


@asynccontextmanager
async def begun_message() -> AsyncIterator[tuple[GrpcTransport, HalfCall]]:
    """A server and a call of the Unity that it belongs to, which has arrived without its message."""
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
        yield server, half


async def test_a_connection_lost_in_the_middle_of_a_message_is_noticed():
    async with begun_message() as (server, half):
        half.cancel()
        with pytest.raises(ConnectionClosed):
            await server.receive()


async def test_a_farewell_in_the_middle_of_a_message_answers_it():
    async with begun_message() as (server, half):
        server.send_farewell(b"bye")
        await half.write(b"agents")
        await half.done_writing()
        assert await asyncio.wait_for(half, 10) == b"bye"


RUBBISH = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "garbage": bytes(range(256)) * 40,
    "nothing": b"",
    "HTTP/2 and then nothing": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)),
    "HTTP/2 and then garbage": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 40,
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
@pytest.mark.parametrize("left", ["open", "closed"])
async def test_connections_that_are_no_calls_do_no_harm(rubbish, left):
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


async def test_silent_connections_do_not_use_up_the_file_descriptors():
    async with listening() as (server, port), calling(port) as call:
        await call(b"greeting")
        before = len(os.listdir("/dev/fd"))
        with ExitStack() as strangers:
            for _ in range(200):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
            waiting = call(b"agents")
            assert await server.receive() == b"agents"
            server.send(b"actions")
            await waiting
            assert len(os.listdir("/dev/fd")) < before + 200 + 100, "200 are the test's own"


async def test_refusals_are_logged_ever_more_rarely(caplog):
    async with listening() as (_, port), calling(port) as stranger:
        for _ in range(25):
            await refused(stranger(b""), "not a greeting", grpc.StatusCode.INVALID_ARGUMENT)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [re.findall(r"\((\d+) so far\)", line) for line in lines] == [[], ["10"]]


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


async def _failure(server: GrpcTransport) -> Exception:
    with pytest.raises(ConnectionError) as caught:
        await server.receive()
    return caught.value
