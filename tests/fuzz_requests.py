"""Mutated requests of HTTP, by a seed: what strangers, and programs with mistakes, send to our servers; and a caller."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

HUGE = 10**400
PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, HUGE, 0.5, 1e308, float("nan"), float("inf")),
    *("", "0", "1e-3", "true", "\ud800", "\udfff\ud800", "é", "x" * 5000, "AAAA", "\x00", "../../etc/passwd"),
    *([], {}, [[]], [[[1, 2]]], [True], ["1"], {"a": {"b": []}}, [[0.5, True, 2.0]], [[1, 2, 3]] * 2000),
)
"""Values in the place of others."""
WORDS = (
    *("", " ", "%00", "%ff", "%ed%a0%80", "%2e%2e%2f", "../", "//", "?", "?token=", "?token=%ff", "?a=1&a=2", "#", ";"),
    *("é", "\udcff", "x" * 9000, "\x01", "{run}", "%", "%zz", "*", "null", "-1", "~", "a%2fb", "\\", "'\"<script>"),
)
"""Pieces of paths and headers; bytes that are no UTF-8 as Python escapes them."""
METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "BREW")
HEADERS = (
    *("Host", "Origin", "Authorization", "Content-Type", "Accept", "Transfer-Encoding", "Upgrade", "Expect", "Range"),
    *("Sec-Fetch-Site", "If-None-Match", "Content-Encoding", "Cookie", "Sec-WebSocket-Key", "Connection", "X-Nothing"),
)
VALUES = (
    *("localhost", "evil.example", "null", "Bearer x", "Bearer ", "Basic eA==", "application/json", "text/plain"),
    *(
        "application/msgpack",
        "chunked",
        "gzip",
        "deflate",
        "websocket",
        "h2c",
        "100-continue",
        "cross-site",
        "bytes=0-",
    ),
    *(
        '"a"',
        "W/",
        "*",
        "*/*",
        "application/json; charset=utf-16",
        "application/json;charset=\udcff",
        "[::1",
        "upgrade",
    ),
)


@dataclass(frozen=True)
class Template:
    """A good request."""

    method: str
    path: str
    body: Any = None
    """What is sent as JSON; None: nothing."""
    headers: Mapping[str, str] = field(default_factory=dict)


def requests(seed: int, count: int, templates: Sequence[Template]) -> Iterator[bytes]:
    """So many requests, each one of the templates with some changes."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _request(chance, chance.choice(templates))


def _request(chance: random.Random, template: Template) -> bytes:
    method, path = template.method, template.path
    headers = [("Host", "localhost"), ("Connection", "close"), *template.headers.items()]
    body = b""
    if template.body is not None:
        plain = _changed(chance, template.body) if chance.random() < 0.7 else template.body
        body = json.dumps(plain).encode()
        headers.append(("Content-Type", "application/json"))
        if chance.random() < 0.2:
            body = _damaged(chance, body)
    if template.body is None or chance.random() < 0.3:
        kind = chance.randrange(4)
        if kind == 0:
            method = chance.choice(METHODS)
        elif kind == 1:
            at = chance.randrange(len(path) + 1)
            path = path[:at] + chance.choice(WORDS) + path[at + chance.randrange(3) :]
        elif kind == 2:
            headers.append((chance.choice(HEADERS), chance.choice([*VALUES, *WORDS])))
        else:
            headers[chance.randrange(len(headers))] = chance.choice(HEADERS), chance.choice([*VALUES, *WORDS])
    headers.append(("Content-Length", str(len(body))))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    whole = "\r\n".join(lines).encode("utf-8", "surrogateescape") + body
    return _damaged(chance, whole) if chance.random() < 0.05 else whole


def _changed(chance: random.Random, plain: Any) -> Any:
    """The same with another value, key or length somewhere."""
    if isinstance(plain, dict) and plain and chance.random() < 0.9:
        key = chance.choice([*plain])
        match chance.randrange(6):
            case 0:
                return {each: value for each, value in plain.items() if each != key}
            case 1:
                return {**plain, chance.choice([word for word in PLAIN if isinstance(word, str)]): plain[key]}
            case _:
                return {**plain, key: _changed(chance, plain[key])}
    if isinstance(plain, list) and plain and chance.random() < 0.7:
        at = chance.randrange(len(plain))
        return [*plain[:at], _changed(chance, plain[at]), *plain[at + chance.randrange(2) :]]
    return chance.choice(PLAIN)


def _damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 5))
            case 2:
                del changed[at : at + chance.randrange(1, 5)]
            case _:
                changed = changed[:at]
    return bytes(changed)


SILENT = 0
"""In the place of a status: there was no answer, as a part of the request is lacking."""


async def statuses(port: int, sent: Iterable[bytes], patience_s: float = 0.3) -> Counter[int]:
    """Send requests, one after the other; the statuses of their answers.

    A status that no mistake of a caller explains, and an answer that is none, are assertions.
    """
    found: Counter[int] = Counter()
    for request in sent:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(patience_s):
                while b"\r\n\r\n" not in answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""):
                    more = await reader.read(2**16)
                    if not more:
                        break
                    answer += more
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        answer = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/") else SILENT
        assert status or not answer, (request, answer)
        assert status in (SILENT, 101) or 200 <= status < 300 or status == 304 or 400 <= status < 500, (request, answer)
        found[status] += 1
    return found


def of_page(token: str, behavior: str) -> list[Template]:
    """Good requests to a live page, which change nothing of its run."""
    known = {"Authorization": f"Bearer {token}"} if token else {}
    run = "/api/runs/live"
    paths = ("/", "/main.js", "/api/runs", "/healthz", "/metrics", "/api/openapi.json")
    reads = [Template("GET", path, headers=known) for path in paths]
    reads += [Template("GET", f"{run}/{name}") for name in ("state", "curves", "leagues", "configuration", "log")]
    socket = {"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Version": "13"}
    reads.append(Template("GET", f"{run}/watch", headers={**socket, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}))
    change = {"behavior": behavior, "name": "beta", "value": 0.005}
    writes = [Template("POST", f"{run}/hyperparameters", change, known) for _ in range(len(reads))]
    wrong = {"Authorization": f"Bearer {token}x"}
    return [
        *reads,
        *writes,
        *(Template("POST", f"{run}/{name}", {}, wrong) for name in ("stop", "pause", "checkpoint")),
    ]


def of_server(row: Sequence[float]) -> list[Template]:
    """Good requests to a policy server with the model `Ball`, of one observation and five choices."""
    one = "/api/models/Ball"
    asked = {"observations": [[[*row]]], "masks": [[1, 1, 1, 1, 1]], "deterministic": True}
    named = {"observations": {"vector": [[*row]] * 3}, "session": "none", "episode_start": [True, False, True]}
    return [
        *(Template("GET", path) for path in ("/api/models", one, "/healthz", "/metrics", "/api/openapi.json")),
        *(Template("POST", f"{one}/act", body) for body in (asked, named) for _ in range(3)),
        Template("POST", f"{one}/sessions", {"agents": 1}),
        Template("DELETE", f"{one}/sessions/none"),
    ]
