"""The messages of all side channels together."""

from __future__ import annotations

import logging
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.environments.engines.unity.side_channels import (
    IncomingMessage,
    RawBytesChannel,
    SideChannel,
    SideChannels,
)
from headrace.stages.errors import StageError

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID_ON_THE_WIRE = "33221100 5544 7766 8899 aabbccddeeff"
OTHER = uuid.UUID(int=7)
ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")


def framed(channel: SideChannel, *messages: bytes) -> bytes:
    return b"".join(channel.channel_id.bytes_le + len(m).to_bytes(4, "little") + m for m in messages)


def test_a_message_is_its_channels_id_its_length_and_its_bytes():
    channel = RawBytesChannel(ID)
    channel.send_raw_data(b"ab")
    assert SideChannels([channel]).outgoing() == bytes.fromhex(f"{ID_ON_THE_WIRE} 02000000 6162")


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=9))))
def test_messages_arrive_at_their_channels_in_order(messages):
    sending = {True: RawBytesChannel(ID), False: RawBytesChannel(OTHER)}
    receiving = {True: RawBytesChannel(ID), False: RawBytesChannel(OTHER)}
    for which, data in messages:
        sending[which].send_raw_data(data)
    SideChannels(receiving.values()).incoming(SideChannels(sending.values()).outgoing())
    for which, channel in receiving.items():
        assert list(channel.get_and_clear_received_messages()) == [data for to, data in messages if to is which]


def test_an_unknown_channel_is_warned_of_once(caplog):
    known, unknown, another = RawBytesChannel(ID), RawBytesChannel(OTHER), RawBytesChannel(uuid.UUID(int=8))
    channels = SideChannels([known], "Unity worker 3")
    channels.incoming(framed(unknown, b"x", b"y") + framed(known, b"a"))
    channels.incoming(framed(unknown, b"z") + framed(another, b"z"))
    assert list(known.get_and_clear_received_messages()) == [b"a"]
    first, second = caplog.messages
    assert first.startswith(f"Unity worker 3 sends messages on the side channel {OTHER}")
    assert str(another.channel_id) in second


def test_training_analytics_are_dropped_silently(caplog):
    caplog.set_level(logging.DEBUG)
    SideChannels([]).incoming(framed(RawBytesChannel(ANALYTICS), b"anything"))
    assert not caplog.messages


def test_two_channels_of_one_id_are_refused():
    class Doubles(RawBytesChannel):
        pass

    with pytest.raises(
        ChannelMisused, match=f"Unity: the side channels RawBytesChannel and Doubles have the same id, {ID}"
    ):
        SideChannels([RawBytesChannel(ID), Doubles(ID)])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            lambda data: data[:-1],
            "expected a message of 2 bytes, according to its header, at byte 41, and 1 bytes are left of 42",
        ),
        (lambda data: data[:30], "expected 20 bytes of its header at byte 21, and 9 bytes are left of 30"),
        (
            lambda data: data[:16] + b"\xff\xff\xff\xff" + data[20:],
            "expected a message of a negative number of bytes, according to its header, at byte 20",
        ),
    ],
)
def test_damaged_data_is_reported_and_reaches_no_channel(damage, problem):
    channel = RawBytesChannel(ID)
    data = framed(channel, b"a", b"bc")
    with pytest.raises(GameBroken, match=f"Unity worker 3: its side-channel data can't be read: {problem}"):
        SideChannels([channel], "Unity worker 3").incoming(damage(data))
    assert not channel.get_and_clear_received_messages()


def test_a_channel_that_fails_is_named():
    class Picky(RawBytesChannel):
        def on_message_received(self, msg: IncomingMessage) -> None:
            raise KeyError(msg.read_string())

    channel = Picky(ID)
    expected = rf"Unity worker 3: the side channel Picky \({ID}\) failed with a message of 6 bytes: KeyError: 'ab'"
    with pytest.raises(StageError, match=expected):
        SideChannels([channel], "Unity worker 3").incoming(framed(channel, bytes.fromhex("02000000 6162")))


def test_a_channel_may_be_of_any_class():
    class Foreign:
        """What a class of ML-Agents' own package looks like from outside."""

        channel_id = ID

        def __init__(self):
            self.message_queue = [bytearray(b"ab")]
            self.heard = []

        def on_message_received(self, msg):
            self.heard.append((msg.read_int32(), msg.read_bool()))

    channel = Foreign()
    channels = SideChannels([channel])  # type: ignore[list-item]
    assert channels.outgoing() == bytes.fromhex(f"{ID_ON_THE_WIRE} 02000000 6162")
    channels.incoming(bytes.fromhex(f"{ID_ON_THE_WIRE} 05000000 07000000 01"))
    assert channel.heard == [(7, True)]
