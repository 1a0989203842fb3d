"""Games call by WebSockets as well, in text and binary frames; pages of other sites, and second games, are turned away."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import msgpack
import pytest
from open_runs import called, free_port

from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.open_protocol.game import OpenGame

HELLO = {
    "type": "hello",
    "protocol": 1,
    "behaviors": {"Ball": {"observations": [{"shape": [1]}], "actions": {"continuous": 1}}},
}
STATE = {"type": "state", "number": 1, "agents": {"Ball": {"deciding": {"ids": [0], "observations": [[[1.0]]]}}}}


@asynccontextmanager
async def listening(max_message_mib=1, timeout_s=30.0):
    """Our side, which waits for a game, the task of its start, and its address."""
    port = free_port()
    ours = OpenGame(GameSettings(0, port, 1, timeout_s, max_message_mib), "websocket", None)
    starting = asyncio.ensure_future(ours.start())
    _, writer = await called(port)  # then it listens
    writer.close()
    async with aiohttp.ClientSession() as session:
        try:
            yield ours, starting, session, f"http://127.0.0.1:{port}/"
        finally:
            starting.cancel()
            await ours.close()


@pytest.mark.parametrize("binary", [False, True])
async def test_a_game_is_answered_in_the_format_that_it_speaks(binary):
    async with listening() as (ours, starting, session, url), session.ws_connect(url) as game:

        async def send(message):
            await (game.send_bytes(msgpack.packb(message)) if binary else game.send_str(json.dumps(message)))

        async def heard():
            frame = await game.receive()
            return msgpack.unpackb(frame.data) if binary else json.loads(frame.data)

        await send(HELLO)
        assert (await heard())["type"] == "welcome"
        await starting
        assert list(ours.specs) == ["Ball"]
        asking = asyncio.ensure_future(ours.request_reset({"speed": 2.0}))
        assert await heard() == {"type": "reset", "number": 1, "parameters": {"speed": 2.0}}
        await send(STATE)
        assert await asking == STATE
        await ours.close()
        assert await heard() == {"type": "close"}


async def test_a_game_that_leaves_has_ended():
    async with listening() as (ours, starting, session, url):
        async with session.ws_connect(url) as game:
            await game.send_str(json.dumps(HELLO))
            await starting
        with pytest.raises(GameEnded, match="was stopped"):
            await ours.request_reset({})


async def test_pages_of_other_sites_and_second_games_are_turned_away(caplog):
    async with listening() as (_, starting, session, url):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await session.ws_connect(url, origin="https://elsewhere.example")
        async with session.ws_connect(url, origin="http://localhost:8000") as game:
            await game.send_str(json.dumps(HELLO))
            await starting
            with pytest.raises(aiohttp.WSServerHandshakeError, match="409"):
                await session.ws_connect(url)
    assert "https://elsewhere.example" in caplog.text
    assert "Rejected a second connection to port" in caplog.text


async def test_a_message_above_the_limit_is_named():
    async with listening() as (ours, starting, session, url), session.ws_connect(url) as game:
        await game.send_str(json.dumps(HELLO))
        await starting
        asking = asyncio.ensure_future(ours.request_reset({}))
        await game.send_bytes(b"\0" * (2 * 2**20))
        with pytest.raises(GameBroken, match="above the limit of 1 MiB"):
            await asking


async def test_a_taken_port_is_named():
    async with listening() as (ours, _, _, _):
        other = OpenGame(GameSettings(1, int(ours.name.split()[-1][:-1]), 1, 1, 1), "websocket", None)
        with pytest.raises(GameRefused, match="is in use by another program"):
            await other.start()
