"""Where servers listen, with real sockets."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.config.listen import hosts_of, reaches_others
from headrace.stages.listening import find_port, outer_host


def listen_on(hosts: list[str], port: int, held: ExitStack) -> None:
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = held.enter_context(socket.socket(family))
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind((host, port))
        server.listen()


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_localhost_means_only_the_two_addresses_of_this_machine():
    assert hosts_of("localhost") == ("127.0.0.1", "::1")
    assert not reaches_others("localhost")


@pytest.mark.parametrize("listen", ["all", "0.0.0.0", "::"])
def test_every_address_has_three_names(listen):
    assert hosts_of(listen) == ("::", "0.0.0.0")
    assert reaches_others(listen)


def test_a_listener_also_listens_on_localhost_because_unity_calls_it():
    assert hosts_of("192.168.1.5") == ("127.0.0.1", "::1", "192.168.1.5")
    assert hosts_of("fd00:0::2") == ("127.0.0.1", "::1", "fd00::2")
    assert reaches_others("192.168.1.5")


def test_other_machines_call_by_an_address_of_this_one():
    assert [outer_host(listen) for listen in ("localhost", "127.0.0.1", "127.0.0.2")] == [""] * 3
    assert outer_host("192.168.1.5") == "192.168.1.5"
    assert outer_host("all") not in ("", "all", "localhost", "0.0.0.0", "::")


@pytest.mark.parametrize("listen", ["my-host.example.org", "", "127.0.0.1:5004", "10.0.0.0/8", "localhost ", "4711"])
def test_invalid_addresses_are_refused_with_the_options(listen):
    with pytest.raises(ValueError, match=r"is not valid; expected localhost .*, an address of this machine .*, or all"):
        hosts_of(listen)


def test_a_port_found_is_free_at_all_addresses(held):
    for last in (False, False, True):
        port, hosts = find_port("localhost", 0)
        assert port > 0
        try:
            listen_on(hosts, port, held)
            break
        except OSError:  # another process took it meanwhile; not three times
            assert not last
    assert find_port("localhost", 0)[0] != port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
@pytest.mark.parametrize("listen", ["localhost", "all"])
def test_a_port_in_use_at_one_address_is_in_use(held, host, listen):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        other = held.enter_context(socket.socket(family))
        other.bind((host, 0))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    other.listen()
    with pytest.raises(OSError, match="another program is using it") as caught:
        find_port(listen, other.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch, code):
    class Old(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *more: int, **options: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(code, "no IPv6")
            super().__init__(family, *more, **options)

    monkeypatch.setattr(socket, "socket", Old)
    assert find_port("localhost", 0)[1] == ["127.0.0.1"]
    assert find_port("all", 0)[1] == ["0.0.0.0"]
    with pytest.raises(OSError, match="fd00::2 is not an address of this machine"):
        find_port("fd00::2", 0)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(OSError, match=r"192\.0\.2\.250 is not an address of this machine") as caught:
        find_port("192.0.2.250", 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL
