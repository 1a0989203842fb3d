"""A site's guards, which decide who may call the site.

A guard is a function that receives a request before its handler does.

A guard raises a refusal, returns a response that replaces the handler's, or returns None to let the request pass.

The Host check blocks other sites' pages whose host name was made to point here (DNS rebinding). The Origin check blocks
other sites' pages that call this site from the user's browser, including WebSockets. The token check blocks every
caller without the token.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from headrace.config.listen import LOCALHOST, reaches_others

Guard = Callable[[web.Request], web.Response | None]
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


def check_host(listen: str, names: Collection[str] = ()) -> Guard:
    """Return a guard that refuses requests whose Host header is not a name of this server.

    Other sites can't make a numeric address point here. So a numeric address is refused only if it is not a loopback
    address and other machines may not call the server.

    Args:
        listen: the server's `listen` value.
        names: additional names of the server.
    """
    wide = reaches_others(listen)
    known = {LOCALHOST, *(name.lower() for name in names), *([socket.gethostname().lower()] if wide else [])}

    @lru_cache(maxsize=64)
    def is_ours(*hosts: str) -> bool:
        host = _name_of(hosts)
        return host in known or _may_be_called(host, wide)

    def guard(request: web.Request) -> None:
        hosts = request.headers.getall(hdrs.HOST, [])
        if not is_ours(*hosts):
            name = _name_of(hosts)
            raise web.HTTPForbidden(
                text=f"{name!a} is not a name of this server; use the server's address, or localhost"
            )

    return guard


def _name_of(hosts: Sequence[str]) -> str:
    if len(hosts) == 1:
        try:
            return urlsplit(f"//{hosts[0]}").hostname or ""
        except ValueError:
            pass
    return ""


def _may_be_called(host: str, wide: bool) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return wide or address.is_loopback


def check_origin(allowed: Collection[str] = ()) -> Guard:
    """Return a guard that refuses requests from pages of other origins. Only browsers send an Origin header.

    Args:
        allowed: additional origins whose pages may call the server; browsers first send a preflight without a token.
    """

    def guard(request: web.Request) -> web.Response | None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin in allowed:
            return web.Response(status=204, headers=LEAVE) if request.method == "OPTIONS" else None
        if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
            raise web.HTTPForbidden(text=f"pages from {origin!a} are not allowed to call this server")
        if request.headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site") and not _opens_page(request):
            raise web.HTTPForbidden(text="pages from other sites are not allowed to call this server")
        return None

    return guard


def _opens_page(request: web.Request) -> bool:
    """Return True if the user followed a link from a different site, in which case only the user sees the response."""
    return request.method in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Mode") == "navigate"


def check_token(token: str, needed: Callable[[web.Request], bool]) -> Guard:
    """Return a guard that refuses requests without the token.

    The token is sent as `Authorization: Bearer …`, or as `?token=…` if a browser can't send headers.

    Args:
        token: the token.
        needed: returns True for requests that need it.
    """

    def guard(request: web.Request) -> None:
        if needed(request) and not carries_token(request, token):
            raise web.HTTPUnauthorized(
                headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
                text="a token is needed: send the one that the command printed, as 'Authorization: Bearer TOKEN'",
            )

    return guard


def carries_token(request: web.Request, token: str) -> bool:
    """Return True if a request carries the token, in a header or in its query string."""
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


def header_adder(allowed: Collection[str] = ()) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a function that adds headers to every response; aiohttp calls it when a response is prepared.

    Args:
        allowed: origins whose pages may read the responses.
    """

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin in allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.VARY] = hdrs.ORIGIN

    return add
