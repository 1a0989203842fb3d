"""Messages of the addon are read in every form in which Godot's writer gives them, and what is none is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.godot.messages import ENV_INFO, HANDSHAKE, WireError, read_message
from headrace.stages.environments.engines.transport import framed

PLAIN = st.recursive(
    st.none() | st.booleans() | st.floats(-1e6, 1e6) | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.lengthy
@given(st.dictionaries(st.text(), PLAIN))
def test_json_is_read_as_it_is(content):
    message = {**content, "type": "step"}
    assert read_message(json.dumps(message, ensure_ascii=False).encode()) == json.loads(json.dumps(message))


def test_a_message_stands_behind_its_length():
    assert framed(b"abc") == b"\x03\0\0\0abc"


def test_ours_are_ascii_and_state_versions_as_texts():
    assert json.loads(HANDSHAKE) == {"type": "handshake", "major_version": "0", "minor_version": "7"}
    assert json.loads(ENV_INFO) == {"type": "env_info"}


def test_text_of_one_byte_a_character_is_read():
    assert read_message('{"type": "env_info", "names": ["réd"]}'.encode("latin-1"))["names"] == ["réd"]
    assert read_message('{"type": "env_info", "names": ["réd"]}'.encode())["names"] == ["réd"]


@pytest.mark.parametrize("sent", ["nan", "-nan", "inf", "-inf", "NaN", "Infinity", "1e99999", "-1e99999"])
def test_numbers_that_are_not_finite_are_words(sent):
    message = read_message(f'{{"type": "step", "obs": [0.5,{sent}, {sent}], "nan": "nan"}}'.encode())
    assert message == {"type": "step", "obs": [0.5, sent, sent], "nan": "nan"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"]]{}", "invalid JSON.*byte 0"),
        (b"\xff\xfe\x00", "invalid JSON"),
        (b'{"type": "step", "obs": [1, 2', "invalid JSON"),
        (b"[1]", "not a message"),
        (b'{"obs": []}', "not a message"),
        (b'{"type": 3}', "not a message"),
        (b"", "invalid JSON"),
    ],
)
def test_what_is_no_message_is_told_with_a_part_of_it(content, problem):
    with pytest.raises(WireError, match=problem):
        read_message(content)
