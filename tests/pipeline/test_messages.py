"""The control channel: what is said arrives as it was said, in order."""

from __future__ import annotations

import asyncio
import socket
import struct
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from virtual_time import until_blocked

from headrace.pipeline import control as control
from headrace.pipeline.control import (
    ControlMessage,
    HostFailed,
    HostFinished,
    LogLine,
    PictureTaken,
    SocketControl,
    Stop,
    decode,
    encode,
)
from headrace.pipeline.hosts.protocol import describe_failure

LONG = 70_000_000
"""Characters of a message that no control frame could carry."""

KINDS = typing.get_args(ControlMessage)

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),  # msgpack has no longer ones
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(),
    type(None): st.none(),
}
PLAIN = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=3),
    max_leaves=8,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return PLAIN
    if kind in SCALARS:
        return SCALARS[kind]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(option) for option in inside])
    if origin is Mapping:
        return st.dictionaries(values(inside[0]), values(inside[1]), max_size=3)
    assert origin is tuple, f"a field of type {kind} can't cross the channel"
    if inside[-1] is Ellipsis:
        return st.lists(values(inside[0]), max_size=3).map(tuple)
    return st.tuples(*map(values, inside))


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


def plain(value: Any) -> Any:
    """Below the top level, tuples travel as lists."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@examples(10)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind, data):
    message = data.draw(messages(kind))
    back = decode(encode(message))
    assert type(back) is kind
    for field in fields(kind):
        sent, got = getattr(message, field.name), getattr(back, field.name)
        assert plain(got) == plain(sent)
        assert type(got) is type(sent)


# Within a process. ----------------------------------------------------------------------------------------------------


async def heard(end, count=None):
    found = []
    async for message in end.receive():
        found.append(message)
        if len(found) == count:
            break
    return found


def line(text):
    return LogLine(20, "headrace.stages", text)


# Between processes. ---------------------------------------------------------------------------------------------------


async def socket_pair():
    (main_hears, host_says), (main_says, host_hears) = socket.socketpair(), socket.socketpair()
    return await SocketControl.open(main_hears, main_says), await SocketControl.open(host_hears, host_says)


@pytest.mark.virtual_time
async def test_messages_cross_a_socket_in_order_whatever_their_size():
    main, host = await socket_pair()
    said = [PictureTaken({}, b"x" * size) for size in (0, 1, 100_000, 3, 1_000_000)]

    async def speak():
        for message in said:
            main.send(message)
            await main.drain()
        main.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(speak())
        assert await heard(host) == said
    host.close()


@pytest.mark.virtual_time
async def test_a_host_that_dies_ends_the_messages():
    main, host = await socket_pair()
    listening = asyncio.create_task(heard(main))
    host.send(HostFinished())
    await until_blocked()
    host.close()
    assert await listening == [HostFinished()]
    main.send(Stop())
    await main.drain()
    main.close()


@pytest.mark.virtual_time
async def test_the_last_message_of_a_host_arrives_although_main_sends_after_its_end():
    (main_hears, host_says), (main_says, host_hears) = socket.socketpair(), socket.socketpair()
    main = await SocketControl.open(main_hears, main_says)
    with host_says, host_hears:
        last = encode(HostFailed("the motor is on fire", "", "actor"))
        host_says.sendall(struct.pack("<I", len(last)) + last)
    for _ in range(3):  # the first finds the connection broken
        main.send(Stop())
    assert await heard(main) == [HostFailed("the motor is on fire", "", "actor")]
    main.close()


def received(data):
    """What an end makes of bytes that come from outside."""

    async def receive():
        (hears, says), (outward, rest) = socket.socketpair(), socket.socketpair()
        with says, rest:
            says.sendall(data)
        end = await SocketControl.open(hears, outward)
        try:
            return await heard(end)
        finally:
            end.close()

    return asyncio.run(receive())


FRAMES = b"".join(struct.pack("<I", len(body)) + body for body in (encode(line("a")), encode(line("b"))))


@given(st.integers(0, len(FRAMES)))
def test_of_a_channel_that_is_cut_anywhere_the_whole_frames_are_heard(at):
    first = 4 + len(encode(line("a")))
    assert received(FRAMES[:at]) == [line("a"), line("b")][: (at >= first) + (at == len(FRAMES))]


def test_an_error_of_any_length_fits_into_a_control_frame():
    error = ValueError("x" * LONG)
    for failed in (describe_failure("actor-0", error), HostFailed(f"begin {error}", "", "actor-0")):
        frame = encode(failed)
        assert len(frame) < 20_000
        assert b"characters left out" in frame
    assert encode(LogLine(30, "mine", "a" + "x" * LONG + "z")).endswith(b"xz")
