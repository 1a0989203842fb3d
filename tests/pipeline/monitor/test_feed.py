"""The stream: states are written down once, and whoever is slow or many holds nobody up; over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web

from headrace.pipeline.monitor.api import StateFeed
from headrace.pipeline.web import Site, SiteOptions, to_json


class Open:
    """A feed that is served."""

    def __init__(self, **limits: Any) -> None:
        self.feed = StateFeed(**limits)
        self.site = Site([web.get("/stream", self.feed.stream)], SiteOptions("127.0.0.1:0"))
        self.publish = self.feed.publish


@asynccontextmanager
async def opened(**limits: Any) -> AsyncIterator[Open]:
    feed = Open(**limits)
    await feed.site.start()
    yield feed
    feed.feed.close()
    await feed.site.stop()


async def read(answer) -> dict:
    while True:
        line = await answer.content.readline()
        if line.startswith(b"data: "):
            return json.loads(line[6:])


async def test_a_viewer_gets_the_newest_state_at_once_and_then_each_new_one():
    async with opened() as feed, ClientSession(feed.site.url) as caller:
        feed.publish({"n": 1})
        feed.publish({"n": 2})
        answer = await caller.get("/stream")
        assert await read(answer) == {"n": 2, "sequence": 2}
        feed.publish({"n": 3})
        assert await read(answer) == {"n": 3, "sequence": 3}
        feed.publish({"n": 4})
        feed.feed.close()
        assert await read(answer) == {"n": 4, "sequence": 4}
        assert (await answer.content.read()).strip() == b""


@pytest.mark.lengthy
async def test_a_viewer_that_stops_reading_skips_states_and_is_disconnected():
    async with opened(patience_s=0.5) as feed:
        with socket.create_connection(("127.0.0.1", feed.site.port)) as silent:
            silent.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with ClientSession(feed.site.url) as caller, caller.get("/stream") as answer:
                most = 0
                for n in range(10_000):  # far more than sockets hold
                    feed.publish({"n": n, "much": "x" * 200_000})
                    seen = (await read(answer)).get("n", n)
                    assert seen <= n
                    most = max(most, feed.feed.viewers)
                    if most == 2 and feed.feed.viewers == 1:
                        break
                assert (most, feed.feed.viewers) == (2, 1)


async def test_viewers_too_many_are_refused():
    async with opened(most_viewers=1) as feed, ClientSession(feed.site.url) as caller:
        async with caller.get("/stream"), caller.get("/stream") as second:
            assert second.status == 503


def test_nan_and_infinity_become_null_in_json():
    assert json.loads(to_json({"a": [float("nan"), 1.0], "b": float("inf")})) == {"a": [None, 1.0], "b": None}
