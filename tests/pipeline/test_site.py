"""A site refuses whom it has to, with the right status and JSON, and serves the others; over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from pydantic import BaseModel

from headrace.pipeline import web as site_module
from headrace.pipeline.web import HEADERS, TOKEN_VARIABLE, Site, SiteOptions, file_routes, make_token, read_json

TOKEN = "right"
JSON = {"Content-Type": "application/json"}


class Order(BaseModel):
    amount: int


class Desk:
    """Keeps what handlers were asked."""

    def __init__(self) -> None:
        self.orders: list[int] = []

    async def order(self, request: web.Request) -> web.Response:
        self.orders.append((await read_json(request, Order)).amount)
        return web.json_response({"orders": self.orders})

    async def look(self, _: web.Request) -> web.Response:
        return web.json_response({"orders": self.orders})

    async def fail(self, _: web.Request) -> web.Response:
        raise ValueError("no such thing")

    async def talk(self, request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.close()
        return connection

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/orders", self.look),
            web.post("/orders", self.order),
            web.get("/fail", self.fail),
            web.get("/talk", self.talk),
        ]


@asynccontextmanager
async def opened(desk: Desk, routes=(), **options) -> AsyncIterator[tuple[Site, ClientSession]]:
    site = Site(routes or desk.routes(), SiteOptions(**{"endpoint": "127.0.0.1:0", "most_body_bytes": 1000, **options}))
    await site.start()
    try:
        async with ClientSession(site.url) as caller:
            yield site, caller
    finally:
        await site.stop()


async def test_the_site_answers_the_pages_that_came_from_it():
    async with opened(Desk()) as (site, caller):
        for host in (f"localhost:{site.port}", f"127.0.0.1:{site.port}", "[::1]:9000", "LOCALHOST"):
            async with caller.get("/orders", headers={"Host": host}) as answer:
                assert (answer.status, await answer.json()) == (200, {"orders": []})
        same = f"http://127.0.0.1:{site.port}"
        async with caller.post("/orders", json={"amount": 1}, headers={"Origin": same}) as answer:
            assert (answer.status, await answer.json()) == (200, {"orders": [1]})
            assert answer.headers.items() >= HEADERS.items()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "localhost.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_foreign_pages_and_foreign_host_names_are_refused(headers):
    desk = Desk()
    async with opened(desk) as (_, caller):
        async with caller.post("/orders", json={"amount": 1}, headers=headers) as answer:
            assert answer.status == 403
            assert (await answer.json()).keys() == {"error"}
        async with caller.get("/talk", headers={"Connection": "upgrade", "Upgrade": "websocket", **headers}) as answer:
            assert answer.status == 403
    assert desk.orders == []


async def test_a_link_from_another_page_may_be_followed():
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with opened(Desk()) as (_, caller), caller.get("/orders", headers=headers) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 401),
        ("?token=wrong", {}, 401),
        ("", {"Authorization": "Bearer righ"}, 401),
        ("?token=right", {"Authorization": "Bearer wrong"}, 401),
        ("?token=right", {}, 200),
        ("", {"Authorization": "Bearer right"}, 200),
    ],
)
async def test_only_requests_with_the_token_are_answered(query, headers, status):
    desk = Desk()
    async with opened(desk, token=TOKEN, needs_token=lambda r: r.method == "POST") as (_, caller):
        async with caller.post(f"/orders{query}", json={"amount": 1}, headers=headers) as answer:
            assert (answer.status, answer.headers.get("WWW-Authenticate")) == (
                status,
                "Bearer" if status == 401 else None,
            )
        async with caller.get("/orders") as answer:
            assert (await answer.json())["orders"] == [1] * (status == 200)


async def test_a_server_with_a_token_has_any_name_for_other_machines():
    desk = Desk()
    service = {"Host": "policy.default.svc:8480"}
    for endpoint, status in (("all:0", 200), ("127.0.0.1:0", 403)):
        async with opened(desk, endpoint=endpoint, token=TOKEN) as (_, caller):
            async with caller.get("/orders", headers={**service, "Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == status
            async with caller.get("/orders", headers=service) as answer:
                assert answer.status in (401, 403)


def test_a_token_is_the_users_or_random(monkeypatch):
    assert len(make_token()) >= 32
    assert make_token() != make_token()
    monkeypatch.setenv(TOKEN_VARIABLE, "mine")
    assert make_token() == "mine"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b'{"amount": "many"}', JSON, 422),
        (rb'{"amount": "\ud800"}', JSON, 400),
        (b'{"amount": 1}', {"Content-Type": "text/plain"}, 415),
        (b" " * 1001, JSON, 413),
        (b'{"amount": 1}', {**JSON, "Content-Encoding": "deflate"}, 415),
    ],
)
async def test_bodies_that_are_malformed_or_too_large_are_refused(body, headers, status):
    desk = Desk()
    async with opened(desk) as (_, caller):
        async with caller.post("/orders", data=body, headers=headers) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]
        async with caller.get("/orders") as answer:
            assert answer.status == 200
    assert desk.orders == []


async def test_a_body_without_a_stated_length_has_the_limit_too():
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with opened(Desk()) as (_, caller), caller.post("/orders", data=endless(), headers=JSON) as answer:
        assert answer.status == 413


@pytest.mark.parametrize(
    "path", ["/none", "/../setup.cfg", "/%2e%2e/setup.cfg", "/orders/..%2f..%2fsetup.cfg", "//etc/passwd"]
)
async def test_unknown_paths_lead_nowhere(path):
    async with opened(Desk()) as (site, _):
        assert await raw(site, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == (404, "error")


async def test_other_methods_are_refused_with_those_that_are_allowed():
    async with opened(Desk()) as (_, caller), caller.delete("/orders") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD,POST")


ORDER = "POST /orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("garbage\r\n\r\n", "Invalid method encountered"),
        ("GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", "Invalid HTTP version"),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", "Host"),
        (f"GET / HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 20000}\r\n\r\n", "Got more than 8190 bytes"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX : x\r\n\r\n", "Invalid header token"),
        (ORDER + "Content-Length: two\r\n\r\n{}", "Invalid character in Content-Length"),
        (ORDER + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "Content-Length"),
        (ORDER + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", "chunk size"),
    ],
)
async def test_a_malformed_request_is_refused_in_json(words, problem):
    async with opened(Desk()) as (site, caller):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(words.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert 400 <= int(head.split()[1]) < 500
        assert b"Content-Type: application/json" in head
        assert problem in json.loads(body)["error"]
        assert len(body) < 300
        async with caller.get("/orders") as answer:
            assert answer.status == 200


async def raw(site: Site, words: str) -> tuple[int, str]:
    """The status of the answer to these bytes, and the only key of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(words.encode("utf-8", "surrogateescape"))
    answer = (await reader.read()).decode()
    writer.close()
    found = re.search(r"^\{.*\}$", answer, re.MULTILINE)
    return int(answer.split()[1]), "".join(json.loads(found[0])) if found else ""


async def test_a_refusal_of_any_length_is_shortened():
    assert str(site_module.refusal(400, "x" * 70_000_000).text).count("x") == 8_000


async def test_an_error_in_a_handler_is_logged_and_answered_with_500(caplog):
    async with opened(Desk()) as (_, caller):
        async with caller.get("/fail") as answer:
            assert answer.status == 500
            assert "no such thing" in (await answer.json())["error"]
        async with caller.get("/orders") as answer:
            assert answer.status == 200
    assert "GET /fail could not be answered" in caplog.text


async def test_a_port_in_use_is_named_and_the_default_port_has_alternatives():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}: another program is using it"):
            await Site([], SiteOptions(f"127.0.0.1:{port}")).start()
        async with opened(Desk(), endpoint="127.0.0.1", usual_port=port) as (site, _):
            assert port < site.port < port + site_module.TRIED_PORTS


class Busy(Desk):
    """Keeps orders waiting until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.started = asyncio.Semaphore(0)

    async def order(self, request: web.Request) -> web.Response:
        self.started.release()
        await self.go_on.wait()
        return await super().order(request)


@pytest.mark.parametrize("most", [2, 4])
async def test_a_connection_beyond_the_limit_gets_503_until_another_one_ends(most):
    desk = Busy()
    async with opened(desk, most_connections=most) as (site, caller):
        orders = [asyncio.create_task(order_of(caller)) for _ in range(most)]
        for _ in orders:
            await desk.started.acquire()
        for _ in range(3):
            async with caller.get("/orders") as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert (await answer.json())["error"] == "all connections are in use; try again later"
        desk.go_on.set()
        assert await asyncio.gather(*orders) == [200] * most
        async with caller.get("/orders") as answer:
            assert (await answer.json())["orders"] == [1] * most


async def order_of(caller):
    async with caller.post("/orders", json={"amount": 1}) as answer:
        return answer.status


PARTS = {
    "nothing": b"",
    "part of a header": b"GET / HTTP/1.1\r\nX: ",
    "part of a body": b"POST /orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 13\r\n\r\n{",
    "a request, and no further one": b"GET /orders HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", PARTS.values(), ids=PARTS)
async def test_a_further_connection_replaces_the_one_that_has_waited_longest(sent):
    desk = Busy()
    async with opened(desk, most_connections=4) as (site, caller):
        order = asyncio.create_task(order_of(caller))  # keeps its connection, because the server owes it an answer
        await desk.started.acquire()
        silent = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            silent.append((reader, writer))
            writer.write(sent)
            async with caller.get("/orders", headers={"Connection": "close"}) as answer:
                assert answer.status == 200
        async with asyncio.timeout(20):
            for reader, _ in silent[:16]:
                await reader.read()  # the end: it is closed
        desk.go_on.set()
        assert await order == 200
        for _, writer in silent:
            writer.close()


async def test_files_are_served_by_their_table(tmp_path):
    (tmp_path / "page.html").write_text("<p>")
    site = Site(file_routes(tmp_path, {"/": "page.html"}), SiteOptions("127.0.0.1:0"))
    await site.start()
    async with ClientSession(site.url) as caller:
        async with caller.get("/") as answer:
            assert (await answer.text(), answer.content_type) == ("<p>", "text/html")
        async with caller.get("/page.html") as answer:
            assert answer.status == 404
    await site.stop()
