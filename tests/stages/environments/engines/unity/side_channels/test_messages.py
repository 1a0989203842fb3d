"""The values that side channels' messages are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.environments.engines.unity.side_channels import IncomingMessage, OutgoingMessage

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("int32"), INT32),
    st.tuples(st.just("float32"), FLOAT32),
    st.tuples(st.just("float32_list"), st.lists(FLOAT32, max_size=5)),
    st.tuples(st.just("string"), st.text(st.characters(max_codepoint=127), max_size=9)),
)


@given(st.lists(VALUES))
def test_values_are_read_in_the_order_in_which_they_were_written(values):
    message = OutgoingMessage()
    for kind, value in values:
        getattr(message, f"write_{kind}")(value)
    read = IncomingMessage(bytes(message.buffer))
    assert [getattr(read, f"read_{kind}")() for kind, _ in values] == [value for _, value in values]
    assert read.offset == len(message.buffer)


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ("bool", True, "01"),
        ("bool", False, "00"),
        ("int32", 5, "05000000"),
        ("int32", -2, "feffffff"),
        ("float32", 1.0, "0000803f"),
        ("float32_list", [1.0, -2.0], "02000000 0000803f 000000c0"),
        ("float32_list", [], "00000000"),
        ("string", "ab", "02000000 6162"),
        ("string", "", "00000000"),
    ],
)
def test_the_bytes_are_those_that_unity_reads_and_writes(kind, value, data):
    message = OutgoingMessage()
    getattr(message, f"write_{kind}")(value)
    assert message.buffer == bytes.fromhex(data)
    assert getattr(IncomingMessage(bytes.fromhex(data)), f"read_{kind}")() == value


@given(st.sampled_from(["bool", "int32", "float32", "float32_list", "string"]), st.integers(0, 3))
def test_reading_past_the_end_returns_the_default(kind, left):
    default = {"bool": True, "int32": 7, "float32": 7.5, "float32_list": [7.5], "string": "seven"}[kind]
    message = IncomingMessage(bytes(4 + (0 if kind == "bool" else left)))
    assert message.read_int32() == 0
    assert getattr(message, f"read_{kind}")(default) == default
    assert getattr(message, f"read_{kind}")(default) == default


def test_without_a_default_reading_past_the_end_returns_an_empty_value():
    message = IncomingMessage(b"")
    assert (message.read_bool(), message.read_int32(), message.read_float32()) == (False, 0, 0.0)
    assert (message.read_float32_list(), message.read_string()) == ([], "")


@pytest.mark.parametrize("data", ["05000000 6162", "ffffffff 6162", "ffffff7f 00000000"])
def test_a_length_that_the_message_does_not_have_counts_as_its_end(data):
    assert IncomingMessage(bytes.fromhex(data)).read_string("default") == "default"
    assert IncomingMessage(bytes.fromhex(data)).read_float32_list([1.0]) == [1.0]


def test_bytes_that_are_not_text_do_not_stop_the_reading():
    assert IncomingMessage(bytes.fromhex("03000000 61ff62 07000000")).read_string() == "a\ufffdb"


def test_raw_bytes_are_the_whole_message():
    message = OutgoingMessage()
    message.set_raw_bytes(b"\x00\x01")
    assert IncomingMessage(bytes(message.buffer)).get_raw_bytes() == b"\x00\x01"
    with pytest.raises(ValueError, match="the message has 2 bytes, but raw"):
        message.set_raw_bytes(b"more")


def test_text_that_unity_can_not_read_is_refused():
    with pytest.raises(ChannelMisused, match="'Schlüssel' is not ASCII, and Unity would read '\\?' for other"):
        OutgoingMessage().write_string("Schlüssel")
