"""The addresses that Headrace's servers listen on: the values of `listen` settings.

By default, servers accept connections from this machine only.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from headrace.config.fields import Text

LOCALHOST = "localhost"
_LOOPBACK = ("127.0.0.1", "::1")
"""Addresses of `localhost`; clients may use either of them."""
_EVERY = ("::", "0.0.0.0")
LAST_PORT = 65535


def hosts_of(listen: str) -> tuple[str, ...]:
    """Return the addresses for a `listen` value.

    The machine may not have all the addresses that `localhost` or `all` implies.

    Raises:
        ValueError: if the value is neither `localhost`, `all` nor an address.
    """
    if listen == LOCALHOST:
        return _LOOPBACK
    if listen == "all" or listen in _EVERY:
        return _EVERY
    address = str(_address(listen))
    return _LOOPBACK if address in _LOOPBACK else (*_LOOPBACK, address)


def reaches_others(listen: str) -> bool:
    """Return True if a server with this `listen` value is reachable from other machines."""
    return any(not ip_address(host).is_loopback for host in hosts_of(listen))


def _address(listen: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(listen)
    except ValueError:
        raise ValueError(
            f"'{listen}' is not valid; expected localhost (this machine only), an address of this machine such as "
            "192.168.1.5 (in addition to localhost), or all (every address of this machine)"
        ) from None


def _checked(listen: str) -> str:
    hosts_of(listen)
    return listen


Listen = Annotated[Text, AfterValidator(_checked)]


def endpoint_of(text: str) -> tuple[str, int | None]:
    """Return an endpoint's `listen` value and its port, which is None for the default port.

    An empty string means localhost and the default port.

    Raises:
        ValueError: if the text is not HOST:PORT, HOST or PORT.
    """
    host, colon, port = text.rpartition(":")
    if text.isdecimal():
        host, port = "", text
    elif not colon or text.endswith("]") or _is_address(text):
        host, port = text, ""
    if port and not (port.isdecimal() and int(port) <= LAST_PORT):
        raise ValueError(
            f"'{text}': '{port}' is not a port; expected HOST:PORT, such as localhost:8470 (0: any free port)"
        )
    listen = host.strip("[]") or LOCALHOST
    hosts_of(listen)
    return listen, int(port) if port else None


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def _checked_endpoint(text: str) -> str:
    endpoint_of(text)
    return text


def is_origin(text: str) -> bool:
    """Return True for an origin as browsers write it: scheme, host, and the port unless it is the default."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises if it is not a port
    except ValueError:
        return False
    return bool(parts.hostname) and text == f"{parts.scheme}://{parts.netloc}".lower() and "@" not in parts.netloc


Endpoint = Annotated[Text, AfterValidator(_checked_endpoint)]
"""Address of an HTTP server: HOST:PORT, HOST or PORT, where HOST is a `listen` value."""
