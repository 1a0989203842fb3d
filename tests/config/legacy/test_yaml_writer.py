"""YAML as --convert prints it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.legacy import as_yaml
from headrace.config.yaml_reader import read_text

SURPRISING = ["yes", "off", "null", "1e4", "0x1f", "12:30", "2020-01-01", "~", "", "- a", "#", "a: b", " a", "3DBall", "é", "\x00", "<<", "=", ".5", "1_0", "C:\\Demos\\a.demo", "./a (1).demo"]  # fmt: skip
TEXTS = st.text(max_size=8) | st.sampled_from(SURPRISING)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=12
)


@pytest.mark.lengthy
@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_written_yaml_reads_back_the_same_here_and_in_pyyaml(data: dict[str, Any]):
    text = as_yaml(data, {})
    document = read_text(text, "new.yaml")
    assert document.mistakes == ()
    assert repr(document.data) == repr(data), "whole numbers stay whole, and text stays text"
    assert yaml.safe_load(text) == data


def test_comments_follow_their_keys_or_precede_them_if_they_are_long():
    data = {"a": {"b": 1, "c": [{"d": 1e-7, "e": {}}, 2, [1.0, "x"]]}, "f": "yes"}
    comments = {("a",): "first", ("a", "b"): "y" * 120, ("a", "c", 0, "d"): "small", ("f",): "said", ("z",): "nowhere"}
    text = as_yaml(data, comments)
    assert text.splitlines() == [
        "a:  # first",
        f"  # {'y' * 120}",
        "  b: 1",
        "  c:",
        "    - d: 1.0e-07  # small",
        "      e: {}",
        "    - 2",
        '    - [1.0, x]',
        'f: "yes"  # said',
    ]  # fmt: skip
    assert read_text(text, "new.yaml").data == data


def test_a_long_comment_at_the_first_key_of_an_item_stands_above_it():
    text = as_yaml({"a": [{"b": 1, "c": 2}]}, {("a", 0, "b"): "y" * 120})
    assert read_text(text, "new.yaml").data == {"a": [{"b": 1, "c": 2}]}
