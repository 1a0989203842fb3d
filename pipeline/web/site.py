"""A site: one HTTP server on an endpoint, with its guards, in the event loop that starts it.

Below it: answers that refuse, the files of a page, and the bodies of requests.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Any, TypeVar
from urllib.parse import quote

import msgpack
import orjson
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from headrace.config.errors import dotted
from headrace.config.listen import endpoint_of, reaches_others
from headrace.config.validation import explain
from headrace.pipeline.web.guards import check_host, check_origin, check_token, header_adder
from headrace.stages.admission import AIM_S, Admission
from headrace.stages.connections import Connections, Places, within_open_files
from headrace.stages.errors import describe_error
from headrace.stages.listening import find_port, outer_host

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.connections")
_quiet.setLevel(logging.CRITICAL)
"""Of aiohttp, which logs a traceback for each caller who sends garbage. Faults of handlers are logged elsewhere."""

_WIDE = (
    "Other machines can call port %d. What is sent there, the token too, is not encrypted: 'localhost' and an SSH "
    "tunnel are safer."
)
KEPT_S = 75.0
"""Seconds for which an idle connection is kept."""
HEALTH = "/healthz"
HEALTH_PATHS = frozenset({HEALTH, "/v2/health/live", "/v2/health/ready"})
"""Paths that are answered even when all connections are in use."""
TRIED_PORTS = 20
"""From the usual port on, where the endpoint has none."""


@dataclass(frozen=True)
class SiteOptions:
    """What a site allows."""

    endpoint: str
    """`headrace.config.listen.Endpoint`; empty: localhost, at the usual port."""
    usual_port: int = 8470
    """Where the endpoint names none: the first that is free from it on."""
    token: str = ""
    """The token; empty: none is asked for."""
    needs_token: Callable[[web.Request], bool] = lambda _: True
    """Says which requests need the token."""
    names: Collection[str] = ()
    """Further names by which the site is called."""
    most_body_bytes: int = 64 * 1024
    """The largest body of a request."""
    most_connections: int = 256
    """At a time; from one address half as many."""
    most_requests: float = math.inf
    """With a body that are answered at a time, or fewer where answers take long; further ones are refused unread."""
    aim_s: Callable[[], float] = lambda: AIM_S
    """Seconds within which most of them should be answered."""
    on_refused: Callable[[], object] = lambda: None
    """Called for each request and connection beyond these bounds."""
    origins: Collection[str] = ()
    """Further origins whose pages may call the site."""
    drops_abandoned: bool = False
    """Handlers are cancelled when their caller has gone."""


class Site:
    """One HTTP server.

    Args:
        routes: what it answers.
        options: what it allows.

    Attributes:
        port: where it listens, once started.
        wide: True if other machines may call it.
    """

    def __init__(self, routes: Iterable[web.RouteDef], options: SiteOptions) -> None:
        self._listen, port = endpoint_of(options.endpoint)
        tried = range(options.usual_port, options.usual_port + TRIED_PORTS)
        self._ports: Sequence[int] = tried if port is None else (port,)
        self.port = 0
        self.wide = reaches_others(self._listen)
        self._guards = [check_host(self._listen, options.names), check_origin(options.origins)]
        if options.token:
            self._guards.append(check_token(options.token, options.needs_token))
        self._app = web.Application(middlewares=[self._answer], client_max_size=options.most_body_bytes)
        self._app.on_response_prepare.append(header_adder(options.origins))
        self._app.add_routes(routes)
        self._runner = web.AppRunner(
            self._app,
            handle_signals=False,
            access_log=None,
            logger=_quiet,
            keepalive_timeout=KEPT_S,
            shutdown_timeout=1.0,
            handler_cancellation=options.drops_abandoned,
            auto_decompress=False,  # a small body could become a large one
        )
        self._server: asyncio.Server | None = None
        self._most = within_open_files(options.most_connections)
        admission = Admission(options.most_requests, time.monotonic, options.aim_s)
        places = Places(self._most, max(1, self._most // 2), admission)
        self._connections = Connections(places, self._handler, options.on_refused)

    @property
    def url(self) -> str:
        """The address by which this machine calls it."""
        host = self._listen if not self.wide or self._listen not in ("all", "::", "0.0.0.0") else "localhost"
        return self._url(host)

    def addresses(self, token: str = "") -> str:
        """Say by what it is called, by other machines too if they may: for the user alone if the token is in it."""
        query = f"?token={quote(token, safe='')}" if token else ""
        outer = self.outer_url
        return f"{self.url}{query}" + (f" (from other machines: {outer}{query})" if outer else "")

    @property
    def outer_url(self) -> str:
        """The address by which other machines call it; empty if none may, or by the same."""
        host = outer_host(self._listen)
        return self._url(host) if host not in ("", self._listen) else ""

    def _url(self, host: str) -> str:
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: if it can't; `strerror` is the reason, with the address.
        """
        await self._runner.setup()
        assert self._runner.server is not None, "it is set up"
        self._runner.server.request_handler = self._admitting(self._runner.server.request_handler)
        for port in self._ports:
            try:
                self.port, hosts = find_port(self._listen, port)
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(self._connections, hosts, self.port, backlog=self._most)
                if self.wide:
                    log.warning(_WIDE, self.port)
                return
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                if taken and port != self._ports[-1]:
                    continue
                await self._runner.cleanup()
                reason = "another program uses it" if taken else error.strerror
                raise OSError(error.errno, f"can't listen on {self._listen}:{port}: {reason}") from error

    def stop_listening(self) -> None:
        """Take no further connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Close all connections, and listen no more."""
        self.stop_listening()
        self._connections.close()
        await self._runner.cleanup()

    def _handler(self) -> asyncio.Protocol:
        assert self._runner.server is not None, "it listens"
        return self._runner.server()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request that the guards let pass; what a handler did not expect is logged, and answered with 500."""
        try:
            for guard in self._guards:
                found = guard(request)
                if found is not None:
                    return found
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _refused(error)
        except ConnectionResetError:  # the caller has gone, and reads no answer
            raise
        except Exception as error:
            log.error("%s %s could not be answered: %s", request.method, request.path, describe_error(error))
            log.debug("where it was raised:", exc_info=True)
            return refusal(500, f"this is a fault of the server: {describe_error(error)}")

    def _admitting(self, handle: Callable[[Any], Awaitable[web.StreamResponse]]) -> Callable[[Any], Any]:
        """Return the handler of all requests: while one is answered its connection has its place.

        In the reserve only health is answered.
        """

        async def answer(request: Any) -> web.StreamResponse:
            with self._connections.answering(request.protocol) as reserved:
                if reserved and request.raw_path not in HEALTH_PATHS:
                    self._connections.refused()
                    answered: web.StreamResponse = refusal(503, "all connections are in use; try again later")
                    answered.headers[hdrs.RETRY_AFTER] = "1"
                else:
                    try:
                        answered = await handle(request)
                    except UnicodeEncodeError:  # a header that aiohttp would quote in its own refusal
                        answered = refusal(400, "a header is no text")
                if reserved:
                    answered.force_close()
                return answered

        return answer


# Answers to what can't be done: always JSON, `{"error": "…"}`, whatever the path and whoever refuses.

_KEPT = {hdrs.ALLOW, hdrs.WWW_AUTHENTICATE}
"""Headers that belong to a refusal."""


def refusal(status: int, message: str) -> web.Response:
    """Return the answer that refuses a request."""
    return web.json_response({"error": message}, status=status)


def _refused(error: web.HTTPException) -> web.Response:
    message = (error.text or "").removeprefix(f"{error.status}: ") or error.reason
    answer = refusal(error.status, message)
    for name in _KEPT & error.headers.keys():
        answer.headers[name] = error.headers[name]
    return answer


# Files of a page: a fixed table of paths, read once, so that no path leads anywhere else.

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "proto": "text/plain",
    "md": "text/plain",
}
"""Types by the ending of a file's name."""


def file_routes(folder: Traversable, names: Mapping[str, str]) -> list[web.RouteDef]:
    """Return the routes of a page's files.

    Args:
        folder: where the files are.
        names: by path, the file's name in that folder.
    """
    return [_route(path, folder.joinpath(name).read_bytes(), name) for path, name in names.items()]


def _route(path: str, content: bytes, name: str) -> web.RouteDef:
    kind, tag = TYPES[name.rpartition(".")[2]], sha256(content).hexdigest()[:16]

    async def answer(request: web.Request) -> web.Response:
        headers = {hdrs.ETAG: f'"{tag}"', hdrs.CACHE_CONTROL: "no-cache"}
        if any(each.value == tag for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    return web.get(path, answer)


M = TypeVar("M", bound=BaseModel)

JSON, MSGPACK = "application/json", "application/msgpack"
BODY_S = 10.0
"""Seconds for the whole of a body."""


async def read_json(request: web.Request, model: type[M]) -> M:
    """Read a request's body; one that is larger than the site allows is refused with 413.

    Args:
        request: the request.
        model: what the body has to be.

    Raises:
        web.HTTPUnsupportedMediaType: if it is no JSON by its type.
        web.HTTPBadRequest: if it is no JSON.
        web.HTTPUnprocessableEntity: if it is JSON of another form; the message names each mistake.
    """
    return checked(await _read(request, {JSON: from_json}), model)


async def read_plain(request: web.Request) -> object:
    """Read a request's body, JSON or msgpack by its type; one that is larger than the site allows is refused with 413.

    Raises:
        web.HTTPUnsupportedMediaType: if it is neither by its type.
        web.HTTPRequestTimeout: if it does not arrive.
        web.HTTPBadRequest: if it is not what its type says.
    """
    return await _read(request, {JSON: from_json, MSGPACK: _unpack})


async def _read(request: web.Request, readers: dict[str, Callable[[bytes], Any]]) -> Any:
    read = readers.get(request.content_type)
    if read is None:
        raise web.HTTPUnsupportedMediaType(text=f"the body has to be of the type {' or '.join(readers)}")
    body = await read_body(request)
    try:
        return read(body)
    except (ValueError, RecursionError) as error:
        name = request.content_type.rpartition("/")[2]
        raise web.HTTPBadRequest(text=f"the body is no {name.replace('json', 'JSON')}: {error}") from None


async def read_body(request: web.Request) -> bytes:
    """Read a request's body, of whatever type; raises what `read_plain` raises, of its type but for a coded one."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        raise web.HTTPUnsupportedMediaType(text="the body has to come as it is, without a Content-Encoding")
    try:
        if request.content.is_eof():  # all of it is there
            return await request.read()
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body has not arrived within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text=f"the body can't be read: {error!a}") from None


def from_json(body: bytes) -> Any:
    """Return what a text in JSON says.

    Raises:
        ValueError, RecursionError: if it is none.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # it knows no NaN, which is refused by what it stands for, and no other encodings
        plain = json.loads(body)
    if b"\\u" in body:  # only so can half of a pair of surrogates come in, which no answer and no log could hold
        json.dumps(plain, ensure_ascii=False).encode()
    return plain


def _unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body)
    except (msgpack.UnpackException, TypeError) as error:  # keys that can't be keys
        raise ValueError(str(error) or type(error).__name__) from error


def checked(plain: object, model: type[M]) -> M:
    """Return plain data as a model.

    Raises:
        web.HTTPUnprocessableEntity: if it does not fit; the message names each mistake.
    """
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        mistakes = (f"{dotted(each.path) or 'body'}: {each.message}" for each in explain(model, error, plain))
        raise web.HTTPUnprocessableEntity(text="; ".join(mistakes)) from None
