"""The server that Unity calls, with calls made by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import grpc
import grpc.aio
import pytest

from stages.unity.errors import UnityRefused
from stages.unity.messages import EXCHANGE
from stages.unity.server import ConnectionLost, ExchangeServer

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@asynccontextmanager
async def connected(
    kind: type[ExchangeServer] = ExchangeServer,
) -> AsyncIterator[tuple[ExchangeServer, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]]]:
    server = kind(0, "worker 7", "Choose another.")
    port = await server.start()
    async with grpc.aio.insecure_channel(f"localhost:{port}", options=UNLIMITED) as channel:
        yield server, channel.unary_unary(EXCHANGE)
        await server.close()


async def test_a_call_is_received_and_its_answer_goes_back():
    async with connected() as (server, call):
        calling = call(b"agents")
        assert await server.receive() == b"agents"
        server.answer(b"actions")
        assert await calling == b"actions"


async def test_a_call_stays_until_it_is_answered():
    async with connected() as (server, call):
        calling = call(b"agents")
        assert await server.receive() == await server.receive() == b"agents"
        server.answer(b"actions")
        await calling


async def test_messages_have_no_limit_of_size():
    large = bytes(9 * 2**20)
    async with connected() as (server, call):
        calling = call(large)
        assert await server.receive() == large
        server.answer(large)
        assert await calling == large


async def test_a_lost_connection_wakes_a_sender_that_waits():
    gone = asyncio.Event()

    class Watched(ExchangeServer):
        def interrupt(self, reason: Exception) -> None:
            super().interrupt(reason)
            gone.set()

    async with connected(Watched) as (server, call):
        calling = call(b"agents")
        await server.receive()
        calling.cancel()
        await gone.wait()
        with pytest.raises(ConnectionLost):
            server.answer(b"actions")
        with pytest.raises(ConnectionLost):
            await server.receive()
        with pytest.raises(grpc.aio.AioRpcError, match="another Unity"):
            await call(b"a new one, which is not who was to be answered")


async def test_a_second_unity_is_sent_away_with_the_reason():
    async with connected() as (server, call):
        first = call(b"one")
        await server.receive()
        with pytest.raises(grpc.aio.AioRpcError, match="worker 7 is connected with another Unity already"):
            await call(b"two")
        server.answer(b"yours")
        assert await first == b"yours"


async def test_an_interruption_wakes_a_waiting_receive():
    async with connected() as (server, _):
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_failure(server))
            await asyncio.sleep(0)
            server.interrupt(ConnectionError("it died"))
            server.interrupt(ConnectionError("too late"))
        assert str(waiting.result()) == "it died"


async def test_a_call_that_came_before_an_interruption_is_still_received():
    async with connected() as (server, call):
        calling = call(b"last words")
        await server.receive()
        server.interrupt(ConnectionError("it died"))
        assert await server.receive() == b"last words"
        server.answer(b"heard")
        await calling


async def test_a_cancelled_receive_loses_nothing():
    async with connected() as (server, call):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await server.receive()
        calling = call(b"agents")
        assert await server.receive() == b"agents"
        server.answer(b"actions")
        await calling


async def test_after_a_farewell_every_call_is_answered_with_it():
    async with connected() as (server, call):
        waiting = call(b"one")
        await server.receive()
        assert server.send_farewell(b"bye")
        assert await waiting == await call(b"two") == b"bye"


async def test_closing_lets_the_last_answer_leave():
    server = ExchangeServer(0, "worker 7", "")
    async with grpc.aio.insecure_channel(f"localhost:{await server.start()}") as channel:
        calling = channel.unary_unary(EXCHANGE)(b"agents")
        await server.receive()
        server.send_farewell(b"bye")
        await server.close()
        await server.close()
        assert await calling == b"bye"


async def test_other_methods_do_not_exist():
    server = ExchangeServer(0, "worker 7", "")
    async with grpc.aio.insecure_channel(f"localhost:{await server.start()}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/communicator_objects.UnityToExternalProto/Other")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.close()


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
        with pytest.raises(UnityRefused, match=rf"worker 7 can't listen on port {port}: another program uses it\. Ch"):
            await ExchangeServer(port, "worker 7", "Choose another.").start()


async def test_a_port_that_was_just_given_up_can_be_used_at_once():
    first = ExchangeServer(0, "worker 7", "")
    port = await first.start()
    async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        calling = channel.unary_unary(EXCHANGE)(b"agents")
        await first.receive()
        first.send_farewell(b"bye")
        await calling
        await first.close()
    second = ExchangeServer(port, "worker 7", "")
    assert await second.start() == port
    await second.close()


async def test_a_number_that_is_no_port_is_refused():
    with pytest.raises(UnityRefused, match="70000 isn't a port"):
        await ExchangeServer(70_000, "worker 7", "").start()


async def _failure(server: ExchangeServer) -> Exception:
    with pytest.raises(ConnectionError) as caught:
        await server.receive()
    return caught.value
