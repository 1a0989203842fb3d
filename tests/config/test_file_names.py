"""Names of users as names of files: to be had on every system, the same on each, and read back."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.paths import file_name, name_of_file, portable, why_not_on_windows


@pytest.mark.parametrize(
    "name",
    ["Ball", "My Behavior", "3D-Ball_2", "a.b", "Bällchen 球", "trainer@learner-Ball", "50%", "con1", "Volley=0"],
)
def test_ordinary_names_stay_as_they_are(name):
    assert file_name(name) == name
    assert why_not_on_windows(name) == ""


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Volley?team=0", "Volley%3Fteam=0"),
        ("a:b", "a%3Ab"),
        ("a/b\\c", "a%2Fb%5Cc"),
        ('<>:"|?*', "%3C%3E%3A%22%7C%3F%2A"),
        ("a\nb\0", "a%0Ab%00"),
        ("ab.", "ab%2E"),
        ("ab ", "ab%20"),
        ("..", ".%2E"),
        ("con", "%63on"),
        ("AUX", "%41UX"),
        ("nul.txt", "%6Eul.txt"),
        ("com1.a.b", "%63om1.a.b"),
        ("lpt²", "%6Cpt²"),
        ("con .x", "%63on .x"),
        ("Ball.onnx", "Ball.onn%78"),
        ("", "%"),
        ("%", "%25"),
        ("a%2Fb", "a%252Fb"),
        ("a%2fb%25", "a%252fb%2525"),
        ("\udce9", "%ED%B3%A9"),
    ],
)
def test_characters_that_windows_forbids_are_escaped_in_file_names_and_decoded_again(name, file):
    assert file_name(name) == file
    assert name_of_file(file) == name


@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(string.punctuation + " \n\0"))))
def test_every_name_is_read_back_and_what_every_system_can_have_is_left_as_it_is(name):
    file = file_name(name)
    assert why_not_on_windows(file) == ""
    assert portable(file) == file
    assert name_of_file(file) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a:b", "':' in file names"), ("con.yaml", "reserves this name for a device"), ("ab.", "drops a dot or space")],
)
def test_why_windows_can_not_have_a_name(name, reason):
    assert reason in why_not_on_windows(name)
