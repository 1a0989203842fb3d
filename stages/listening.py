"""The addresses and port of a server. All of Headrace's servers use this module, so the same rules apply to all."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from headrace.config.listen import LOCALHOST, hosts_of, reaches_others

if TYPE_CHECKING:
    import grpc.aio

_ATTEMPTS = 20
"""Number of attempts to find a port that is free at all addresses, if any port will do."""
_LACKING = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Error codes for an address that this machine does not have, such as `::1` without IPv6."""


def find_port(listen: str, port: int) -> tuple[int, list[str]]:
    """Find out where a server can listen.

    Libraries do not do this well: their errors name no cause, and there is no error if only one address is free.

    Args:
        listen: the value of a `listen` setting.
        port: the port; 0 for any free one.

    Returns:
        The port, and the addresses to listen on.

    Raises:
        OSError: if no address and port can be used; `strerror` is the reason, and EADDRNOTAVAIL means that the setting
            does not fit this machine.
        ValueError: if the setting is not a `listen` value.
    """
    hosts = hosts_of(listen)
    named = hosts[-1] if len(hosts) > 2 else None  # the address that the user wrote; a machine may not have the others
    attempts = _ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _try_all(hosts, named, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if not attempts:
                raise OSError(errno.EADDRINUSE, "another program is using it") from error


_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849) used to find this machine's source address; no packet is sent."""


def outer_host(listen: str) -> str:
    """Return the host name that other machines use for a server with this `listen` value.

    Return an empty string if other machines can't reach the server.
    """
    if not reaches_others(listen):
        return ""
    if len(hosts_of(listen)) > 2:
        return hosts_of(listen)[-1]
    for family, address in _ELSEWHERE.items():  # this machine's source address for other machines, if any
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((address, 9))
            return str(way.getsockname()[0])
    return socket.gethostname()


def add_grpc_port(server: grpc.aio.Server, port: int, hosts: list[str]) -> bool:
    """Make a gRPC server listen at the port from `find_port`; return False if another program took the port first."""
    for host in ["::"] if "::" in hosts else hosts:  # gRPC's `::` stands for all addresses, including IPv4
        try:
            if not server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
                return False
        except RuntimeError:  # gRPC's error gives no cause
            return False
    return True


def _try_all(hosts: tuple[str, ...], named: str | None, port: int) -> tuple[int, list[str]]:
    usable = []
    with ExitStack() as held:
        for host in hosts:
            try:
                trial = held.enter_context(_bound(host, port))
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                if host == named:
                    raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this machine") from error
                continue
            port = trial.getsockname()[1]
            usable.append(host)
    if not usable:
        raise OSError(errno.EADDRNOTAVAIL, f"this machine has no {LOCALHOST}: neither {' nor '.join(hosts)}")
    return port, usable


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    trial = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # Windows would allow a port in use, other systems only one whose server has closed
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        trial.bind(address)
    except BaseException:
        trial.close()
        raise
    return trial
