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


async def test_the_game_is_who_says_something_first_and_is_told_what_was_said_before(server, caplog):
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


async def test_connections_that_all_end_without_a_word_are_the_end_of_the_game(server):
    callers = [await call(server) for _ in range(2)]
    await server.connected()
    received = asyncio.create_task(server.receive())
    for _, writer in callers:
        writer.close()
    with pytest.raises(ConnectionClosed):
        await received


async def test_an_interruption_ends_the_wait_for_a_first_word(server):
    _, writer = await call(server)
    await server.connected()
    received = asyncio.create_task(server.receive())
    await asyncio.sleep(0)
    server.interrupt(ValueError("its process has died"))
    with pytest.raises(ValueError, match="has died"):
        await received
    writer.close()


async def test_a_flood_of_silent_connections_keeps_no_game_out(server):
    silent = [await call(server) for _ in range(40)]
    reader, writer = await call(server)
    writer.write(framed(b"the game"))
    assert await server.receive() == b"the game"
    server.send(b"well")
    assert await reader.readexactly(8) == framed(b"well")
    for _, its_writer in [*silent, (reader, writer)]:
        its_writer.close()
