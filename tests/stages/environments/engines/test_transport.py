"""The TCP server that one game calls: whoever says nothing keeps no game out."""

from __future__ import annotations

import asyncio

import pytest

from headrace.stages.environments.engines.transport import ADDRESS, ConnectionClosed, TcpTransport, framed


@pytest.fixture
async def server():
    made = TcpTransport(0, 1000)
    await made.start("game", "")
    yield made
    await made.close()


async def call(server):
    return await asyncio.open_connection(ADDRESS, server.port)


async def test_the_first_connection_that_sends_bytes_is_the_game(server, caplog):
    silent = [await call(server) for _ in range(2)]
    await server.connected()
    server.send(b"who is there?")
    reader, writer = await call(server)
    assert await reader.readexactly(17) == framed(b"who is there?")
    received = asyncio.create_task(server.receive())
    writer.write(framed(b"the game"))
    assert await received == b"the game"
    for each, its_writer in silent:
        assert await each.read() == framed(b"who is there?")  # and then its end
        its_writer.close()
    late, its_writer = await call(server)
    assert await late.read() == b""
    its_writer.close()
    assert caplog.text.count("Rejected a second connection to port") == 2
    server.send(b"well")
    assert await reader.readexactly(8) == framed(b"well")
    writer.close()
    with pytest.raises(ConnectionClosed):
        await server.receive()


async def test_silent_connections_that_all_close_end_the_game(server):
    callers = [await call(server) for _ in range(2)]
    await server.connected()
    received = asyncio.create_task(server.receive())
    for _, writer in callers:
        writer.close()
    with pytest.raises(ConnectionClosed):
        await received
