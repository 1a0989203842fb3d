"""The basis of Headrace's HTTP servers: a site on one endpoint, with checks of its callers and a bound on connections.

The Host check blocks other sites' pages whose host name was made to point here (DNS rebinding). The Origin check blocks
other sites' pages that call this site from the user's browser, including WebSockets. The token check blocks every
caller without the token.

A site runs in the event loop that starts it. This module also creates refusals, serves a page's files and reads request
bodies.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import logging
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from ipaddress import ip_address
from mimetypes import MimeTypes
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import orjson
from aiohttp import hdrs, web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from headrace.config.errors import dotted
from headrace.config.listen import LOCALHOST, endpoint_of, reaches_others
from headrace.config.validation import explain
from headrace.stages.errors import describe_error
from headrace.stages.listening import find_port, outer_host
from headrace.startup_context import shortened

TOKEN_VARIABLE = "HEADRACE_TOKEN"
"""Environment variable in which a user can set the token."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the URL may contain the token
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response."""

LEAVE = {
    hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
    hdrs.ACCESS_CONTROL_ALLOW_HEADERS: "authorization, content-type",
    hdrs.ACCESS_CONTROL_MAX_AGE: "600",
}
"""Headers of the response to a preflight request from an allowed origin."""


def make_token() -> str:
    """Return the token that the user set in the environment, or a new token."""
    return os.environ.get(TOKEN_VARIABLE, "").strip() or secrets.token_urlsafe(24)


def carries_token(request: web.Request, token: str) -> bool:
    """Return True if a request carries the token, as `Authorization: Bearer …` or, from a browser, as `?token=…`."""
    header = request.headers.get(hdrs.AUTHORIZATION, "")
    if not header.lower().startswith("bearer "):
        header = f"bearer {request.query.get('token', '')}"
    return has_token(header, token)


def bears_token(request: web.Request) -> bool:
    """Return True if a request carries any token, whether right or wrong."""
    return hdrs.AUTHORIZATION in request.headers or "token" in request.query


def has_token(header: str, token: str) -> bool:
    """Return True if an `authorization` header contains the token, comparing in constant time."""
    scheme, _, secret = header.partition(" ")
    given, expected = (text.encode("utf-8", "surrogateescape") for text in (secret.strip(), token))
    same = hmac.compare_digest(given, expected)
    return same and scheme.lower() == "bearer"


_BODY = b'{"error": "all connections are in use; try again later"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class Connection(web.RequestHandler):
    """aiohttp's handler of a connection, which makes room for itself.

    Args:
        most: maximum number of connections. A further one replaces the one that has waited longest for its client.
        opened: the server's connections.
        waiting: those that wait for their client, the longest wait first; the server answers requests on the others.
        manager: the server.
        options: see `aiohttp.web.RequestHandler`.
    """

    __slots__ = ("_most", "_opened", "_waiting")

    def __init__(
        self, most: int, opened: set[Any], waiting: OrderedDict[Connection, None], manager: web.Server, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._most, self._opened, self._waiting = most, opened, waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read requests, or refuse the connection if no other one waits. Called by asyncio."""
        super().connection_made(transport)
        if len(self._opened) < self._most or self._waiting:
            if len(self._opened) >= self._most:
                self._waiting.popitem(last=False)[0].force_close()
            self._opened.add(self)
            self.wait()
        elif self.transport is not None:
            self.transport.write(_REFUSAL)
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for others. Called by asyncio."""
        self._opened.discard(self)
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def wait(self) -> None:
        """Wait for the client, which may still be reading an answer."""
        if self.transport is not None:
            self._waiting[self] = None
            self._waiting.move_to_end(self)

    def answer(self) -> None:
        """Keep the connection open until its next `wait`, because a request has arrived completely."""
        self._waiting.pop(self, None)

    def handle_error(self, request: web.BaseRequest, *error: Any) -> web.StreamResponse:
        """Refuse a malformed request in JSON. Called by aiohttp."""
        answer = super().handle_error(request, *error)
        assert isinstance(answer, web.Response)
        answer.body = to_json({"error": " ".join((answer.text or "").split())[:200]})  # it may quote all of a request
        answer.content_type = "application/json"
        return answer


log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.connections")
_quiet.setLevel(logging.CRITICAL)
"""Silenced logger for aiohttp, because aiohttp logs every malformed request; `Site` itself logs handler errors."""


class AccessLog(AbstractAccessLogger):
    """Logs each answered request, without the URL's query, which may contain the token."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log one request. Called by aiohttp."""
        fields = {
            "remote": request.remote,
            "method": request.method,
            "path": request.rel_url.raw_path,
            "status": response.status,
            "seconds": round(time, 4),
        }
        model = request.match_info.get("model") if isinstance(request, web.Request) else None
        extra = {**fields, **({"behavior": model} if model else {})}
        self.logger.info("%s", " ".join(map(str, fields.values())), extra=extra)


_WIDE = (
    "Other machines can reach port %d. The traffic, including the token, is not encrypted: listening on 'localhost' "
    "and using an SSH tunnel is safer."
)
KEPT_S = 75.0
"""Seconds that an idle connection is kept open."""
_BACKLOG = 1024
"""Maximum number of new connections that wait, and that are accepted before requests are read again."""
HEALTH, READY = "/healthz", "/readyz"
TRIED_PORTS = 20
"""Number of ports to try, starting with the default one, if the endpoint has no port."""


@dataclass(frozen=True)
class SiteOptions:
    """A site's settings."""

    endpoint: str
    """Address to listen on, as `headrace.config.listen.Endpoint`; empty for localhost at the default port."""
    usual_port: int = 8470
    """The default port. If the endpoint has no port, the site uses the first free port, starting with this one."""
    token: str = ""
    """The token that callers need; empty if they need none."""
    needs_token: Callable[[web.Request], bool] = lambda _: True
    """Function that returns True for requests that need the token."""
    most_body_bytes: int = 64 * 1024
    """Maximum size of a request body, in bytes."""
    most_connections: int = 256
    """Maximum number of concurrent connections; see `Connection`."""
    origins: Collection[str] = ()
    """Additional origins whose pages may call the site."""
    access_log: bool = False
    """True to log every request."""
    drops_abandoned: bool = False
    """True to cancel handlers whose caller has disconnected."""


class Site:
    """One HTTP server.

    Args:
        routes: the server's routes.
        options: the server's settings.

    Attributes:
        port: the port on which the server listens; 0 before `start`.
        wide: True if other machines may call the server.
    """

    def __init__(self, routes: Iterable[web.RouteDef], options: SiteOptions) -> None:
        self._listen, port = endpoint_of(options.endpoint)
        tried = range(options.usual_port, options.usual_port + TRIED_PORTS)
        self._ports: Sequence[int] = tried if port is None else (port,)
        self.port = 0
        self.wide = reaches_others(self._listen)
        self._options = options
        self._is_name = lru_cache(maxsize=64)(self._names_this_server)
        self._app = web.Application(middlewares=[self._answer], client_max_size=options.most_body_bytes)
        self._app.on_response_prepare.append(self._add_headers)
        for route in routes:
            kwargs = {"expect_handler": meet_expectation, **route.kwargs}
            web.RouteDef(route.method, route.path, route.handler, kwargs).register(self._app.router)
        self._runner = web.AppRunner(
            self._app,
            handle_signals=False,
            shutdown_timeout=1.0,
            handler_cancellation=options.drops_abandoned,
        )
        self._server: asyncio.Server | None = None
        self._connections: tuple[set[Any], OrderedDict[Connection, None]] = (set(), OrderedDict())

    @property
    def url(self) -> str:
        """The URL for calls from this machine."""
        host = self._listen if not self.wide or self._listen not in ("all", "::", "0.0.0.0") else "localhost"
        return self._url(host)

    def addresses(self, token: str = "") -> str:
        """Return the site's URLs, including the one for other machines if they may call and it is a different one.

        With a token, show them only to the user.
        """
        query = f"?token={quote(token, safe='')}" if token else ""
        host = outer_host(self._listen)
        outer = f" (from other machines: {self._url(host)}{query})" if host not in ("", self._listen) else ""
        return f"{self.url}{query}{outer}"

    def _url(self, host: str) -> str:
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: if the server can't listen; `strerror` gives the address and the reason.
        """
        await self._runner.setup()
        assert self._runner.server is not None, "it is set up"
        for port in self._ports:
            try:
                self.port, hosts = find_port(self._listen, port)
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(self._connection, hosts, self.port, backlog=_BACKLOG)
                if self.wide:
                    log.warning(_WIDE, self.port)
                return
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                if taken and port != self._ports[-1]:
                    continue
                await self._runner.cleanup()
                reason = "another program is using it" if taken else error.strerror
                raise OSError(error.errno, f"can't listen on {self._listen}:{port}: {reason}") from error

    def stop_listening(self) -> None:
        """Accept no more connections; open connections stay open."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        self.stop_listening()
        await self._runner.cleanup()

    def _connection(self) -> Connection:
        assert self._runner.server is not None, "it listens"
        return Connection(
            self._options.most_connections,
            *self._connections,
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=log if self._options.access_log else None,
            access_log_class=AccessLog,
            logger=_quiet,
            keepalive_timeout=KEPT_S,
            auto_decompress=False,  # a small compressed body could become a large one
        )

    def _names_this_server(self, *hosts: str) -> bool:
        """Return True if there is one Host header, and it names this server.

        Other sites can't make a numeric address point here. So a numeric address is refused only if it is not a
        loopback address and other machines may not call the server. If they may, callers know the server by any name,
        such as that of a Kubernetes service, and the token keeps other sites out.
        """
        try:
            (host,) = hosts
            name = urlsplit(f"//{host}").hostname or ""
            if name == LOCALHOST or (self.wide and self._options.token):
                return True
            return ip_address(name).is_loopback or self.wide
        except ValueError:  # no host or several, or neither a name of this server nor an address
            return False

    def _check_host(self, request: web.Request) -> None:
        hosts = request.headers.getall(hdrs.HOST, [])
        if not self._is_name(*hosts):
            raise web.HTTPForbidden(
                text=f"{', '.join(hosts)!a} is not a name of this server; use the server's address, or localhost"
            )

    def _check_origin(self, request: web.Request) -> web.Response | None:
        """Refuse a request from a page of another origin. Return the response to a preflight from an allowed origin.

        Only browsers send an Origin header, and they send a preflight without a token.
        """
        origin = request.headers.get(hdrs.ORIGIN)
        if origin in self._options.origins:
            return web.Response(status=204, headers=LEAVE) if request.method == "OPTIONS" else None
        if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
            raise web.HTTPForbidden(text=f"pages from {origin!a} are not allowed to call this server")
        # The user may follow a link from a different site, because then only the user sees the response.
        opens_page = request.method in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if request.headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site") and not opens_page:
            raise web.HTTPForbidden(text="pages from other sites are not allowed to call this server")
        return None

    def _check_token(self, request: web.Request) -> None:
        token = self._options.token
        if token and self._options.needs_token(request) and not carries_token(request, token):
            raise web.HTTPUnauthorized(
                headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
                text="a token is needed: send the printed one, or HEADRACE_TOKEN's, as 'Authorization: Bearer TOKEN'",
            )

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin in self._options.origins:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.VARY] = hdrs.ORIGIN

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request that passes the checks.

        If the handler fails unexpectedly, log the error and respond with 500.
        """
        connection = request.protocol
        assert isinstance(connection, Connection), "`_connection` made it"
        if request.content.is_eof():
            connection.answer()
        try:
            self._check_host(request)
            preflight = self._check_origin(request)
            if preflight is not None:
                return preflight
            self._check_token(request)
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _refused(error)
        except ConnectionResetError:  # the caller has disconnected
            raise
        except Exception as error:
            log.error("%s %s could not be answered: %s", request.method, request.path, describe_error(error))
            log.debug("where it was raised:", exc_info=True)
            return refusal(500, f"this is an error in the server: {describe_error(error)}")
        finally:
            connection.wait()


# Refusals: always JSON, `{"error": "…"}`, on every path and from every source.

_KEPT = {hdrs.ALLOW, hdrs.WWW_AUTHENTICATE}
"""Headers of an aiohttp error that are copied to the refusal."""


def to_json(plain: Any) -> bytes:
    """Encode plain data, which may contain tuples and NumPy arrays, as JSON; NaN and infinities become null."""
    try:
        return orjson.dumps(plain, default=tuple, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # text with a lone surrogate, such as the name of a file that is not UTF-8
        return json.dumps(plain).encode()


def json_response(plain: Any, status: int = 200) -> web.Response:
    """Return a response with plain data as JSON."""
    headers = {hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=to_json(plain), status=status, content_type="application/json", headers=headers)


def refusal(status: int, message: str) -> web.Response:
    """Return the JSON response for a refusal."""
    return web.json_response({"error": shortened(message)}, status=status)


def _refused(error: web.HTTPException) -> web.Response:
    message = (error.text or "").removeprefix(f"{error.status}: ") or error.reason
    if message in ("Not Found", "Method Not Allowed"):  # from the router; other errors have their own text
        message += "; GET /api/openapi.json lists the paths and methods"
    answer = refusal(error.status, message)
    answer.headers.update({name: error.headers[name] for name in _KEPT & error.headers.keys()})
    return answer


class Api:
    """An HTTP API: its routes, and their description as an OpenAPI document.

    Args:
        title: name of the API.
        refusals: the HTTP statuses of refusals, with the reasons.
        routes: additional routes that the document does not describe.

    Attributes:
        routes: all routes, including one for the document.
        document: the OpenAPI document as plain data.
    """

    def __init__(self, title: str, refusals: Mapping[int, str], routes: Iterable[web.RouteDef] = ()) -> None:
        async def describe(_: web.Request) -> web.Response:
            return json_response(self.document)

        self.routes = [*routes, web.get("/api/openapi.json", describe)]
        self._refusals = {str(status): {"description": text} for status, text in refusals.items()}
        self._schemas: dict[str, Any] = {}
        self.document: dict[str, Any] = {
            "openapi": "3.1.0",
            "info": {"title": title, "version": "1"},
            "paths": {},
            "components": {
                "schemas": self._schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        summary: str,
        body: type[BaseModel] | None = None,
        answer: type[BaseModel] | None = None,
        done: int = 200,
    ) -> None:
        """Add a route.

        Args:
            method: the HTTP method.
            path: the path, with the parameters in braces.
            handler: answers the requests.
            summary: what a request does or returns.
            body: model of the request's body; None if it has none.
            answer: model of the response's body; None to leave it undescribed.
            done: HTTP status of a successful response.
        """
        self.routes.append(web.route(method, path, handler))
        succeeded = {"description": "Done", **self._content(answer)}
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", path)
            ],
            "responses": {str(done): succeeded, **self._refusals},
            "security": [{"token": []}, {}],
        }
        if body is not None:
            required = any(field.is_required() for field in body.model_fields.values())
            operation["requestBody"] = {"required": required, **self._content(body)}
        self.document["paths"].setdefault(path, {})[method.lower()] = operation

    def _content(self, model: type[BaseModel] | None) -> dict[str, Any]:
        if model is None:
            return {}
        schema = model.model_json_schema()
        self._schemas.update(schema.pop("$defs", {}))
        return {"content": {"application/json": {"schema": schema}}}


# A page's files: a fixed table of paths, read once, so no request can reach other files.


async def meet_expectation(request: web.Request) -> None:
    """Send 100 Continue if a request expects it. aiohttp's own refusal repeats the header, which may not be text."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed(text="expected 100-continue, or no Expect header")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def file_routes(folder: Traversable, names: Mapping[str, str]) -> list[web.RouteDef]:
    """Return the routes for a page's files.

    Args:
        folder: where the files are.
        names: file names in that folder, by URL path.
    """
    return [_route(path, folder.joinpath(name).read_bytes(), name) for path, name in names.items()]


def _route(path: str, content: bytes, name: str) -> web.RouteDef:
    kind, _ = MimeTypes().guess_type(name)  # unlike the module's function, it knows no types of this system
    headers = {hdrs.CACHE_CONTROL: "no-cache"}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind or "text/plain", charset="utf-8", headers=headers)

    return web.get(path, answer)


M = TypeVar("M", bound=BaseModel)

BODY_S = 10.0
"""Seconds within which the entire body of a request must arrive."""


async def read_json(request: web.Request, model: type[M]) -> M:
    """Read a request's JSON body into a model.

    Args:
        request: the request.
        model: class of the model.

    Raises:
        web.HTTPUnsupportedMediaType: if the content type is not JSON.
        web.HTTPException: as for `read_body`, `from_json` and `checked`.
    """
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="expected JSON and the header Content-Type: application/json")
    return checked(from_json(await read_body(request)), model)


async def read_body(request: web.Request) -> bytes:
    """Read a request's body of any type; aiohttp refuses a body larger than the site allows with 413.

    Raises:
        web.HTTPUnsupportedMediaType: if the body has a Content-Encoding.
        web.HTTPRequestTimeout: if the body does not arrive in time.
        web.HTTPBadRequest: if the body can't be read.
    """
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity":
        raise web.HTTPUnsupportedMediaType(text="the body must be sent without a Content-Encoding")
    try:
        if request.content.is_eof():  # the entire body has arrived
            return await request.read()
        async with asyncio.timeout(BODY_S):
            body = await request.read()
        assert isinstance(request.protocol, Connection)
        request.protocol.answer()
        return body
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise web.HTTPBadRequest(text=f"the body can't be read: {error!a}") from None


def from_json(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        web.HTTPBadRequest: if the body is not JSON.
    """
    with suppress(orjson.JSONDecodeError):  # orjson reads only UTF-8 and no NaN; later checks report NaN with its place
        return orjson.loads(body)
    try:
        plain = json.loads(body)
        if b"\\u" in body:  # a lone surrogate can only occur as an escape; responses and logs could not encode it
            json.dumps(plain, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from None
    return plain


def checked(plain: object, model: type[M]) -> M:
    """Convert plain data to a model.

    Raises:
        web.HTTPUnprocessableEntity: if the data does not fit the model; the message names each mistake.
    """
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        mistakes = (f"{dotted(finding.path) or 'body'}: {finding.message}" for finding in explain(model, error, plain))
        raise web.HTTPUnprocessableEntity(text="; ".join(mistakes)) from None
