"""Messages in JSON and msgpack; what is none is named."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.open_protocol.messages import decode, encode, format_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.floats(-1e6, 1e6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.lengthy
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=20), st.sampled_from(["json", "msgpack"]))
def test_a_message_comes_back_and_tells_its_format(content, form):
    message = {**content, "type": "state"}
    written = encode(message, form)
    assert format_of(written) == form
    assert decode(written) == message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{]", "invalid JSON: .* at character 1, in '{]'"),
        (b'{"type": "state", "rewards": [0.5, NaN]}', "invalid JSON: .* in .*not finite: look for a division by zero"),
        (b'{"type": "stat\xe9"}', "invalid JSON: .*not valid UTF-8.*stat"),
        (b"\x82\xc1", "invalid msgpack"),
        (b"", "invalid JSON: .*empty document"),
        (b"[1, 2]", "not a message"),
    ],
)
def test_invalid_messages_are_named(content, words):
    with pytest.raises(MessageError, match=words):
        decode(content)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(content):
    with suppress(MessageError):
        assert isinstance(decode(content), dict)
