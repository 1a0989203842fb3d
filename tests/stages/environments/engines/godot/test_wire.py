"""Messages of the addon are read in every form in which Godot's writer gives them, and what is none is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.environments.engines.errors import MessageError
from headrace.stages.environments.engines.godot.messages import read_message

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


def test_text_of_one_byte_a_character_is_read():
    assert read_message('{"type": "env_info", "names": ["réd"]}'.encode("latin-1"))["names"] == ["réd"]
    assert read_message('{"type": "env_info", "names": ["réd"]}'.encode())["names"] == ["réd"]


@pytest.mark.parametrize(
    "sent",
    [
        "nan",
        "inf",
        "Infinity",
        "1e99999",
    ],
)
def test_numbers_that_are_not_finite_are_words(sent):
    message = read_message(f'{{"type": "step", "obs": [0.5,{sent}, {sent}], "nan": "nan"}}'.encode())
    assert message == {"type": "step", "obs": [0.5, sent, sent], "nan": "nan"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"]]{}", "invalid JSON.*byte 0"),
        (b'{"type": "step", "obs": [1, 2', "invalid JSON"),
        (b'{"obs": []}', "not a message"),
        (b"", "invalid JSON"),
    ],
)
def test_invalid_messages_are_quoted(content, problem):
    with pytest.raises(MessageError, match=problem):
        read_message(content)
