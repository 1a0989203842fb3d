"""YAML as plain data with lines: scalars, keys, merges, and everything that is not YAML."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.errors import ConfigError
from headrace.config.yaml_reader import read_file, read_text


def read(text: str) -> Any:
    return read_text(text, "test.yaml").data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5e6", 5e6),
        ("1.0e8", 1e8),
        ("1_000", 1000),
        ("010", 10),
        ("0x1F", 31),
        ("-7", -7),
        (".inf", math.inf),
        ("true", True),
        ("null", None),
        ("", None),
        ("on", "on"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        ("9" * 5000, math.inf),
        ("<<", "<<"),
    ],
)
def test_a_scalar_means_what_it_looks_like(text: str, value: object):
    result = read(f"key: {text}")["key"]
    assert (result, type(result)) == (value, type(value))


@pytest.mark.lengthy
@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_that_python_writes_is_read_back(number: float):
    assert read(f"key: {number!r}")["key"] == number


def test_keys_are_text_whatever_they_look_like():
    assert read("3: a\ntrue: b\n1e4: c") == {"3": "a", "true": "b", "1e4": "c"}


def test_a_merge_puts_a_map_under_the_keys_next_to_it():
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nmine:\n  b: 5\n  <<: [*base, *other]\n"
    assert read(text)["mine"] == {"a": 1, "b": 5, "c": 4}


def test_an_alias_stands_for_its_anchor():
    assert read("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}


DOCUMENT = """\
behaviors:
  Tennis:
    max_steps: 5

    list:
      - {a: 1}
      -
        b: 2
base: &base
  x: 1
mine:
  <<: *base
  y: 2
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("behaviors",), 1),
        (("behaviors", "Tennis", "max_steps"), 3),
        (("behaviors", "Tennis", "list", 0, "a"), 6),
        (("behaviors", "Tennis", "list", 1, "b"), 8),
        (("behaviors", "Tennis", "absent", "below"), 2),
        (("behaviors", "Tennis", "list", 7), 5),
        (("mine", "y"), 13),
        (("mine", "x"), 10),
        ((), 1),
    ],
)
def test_a_line_is_that_of_the_key_or_of_the_nearest_thing_around_it(path: tuple[str | int, ...], line: int):
    assert read_text(DOCUMENT, "test.yaml").line_of(path) == line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", "test.yaml:3: a: appears twice here (first in line 1)"),
        ("x:\n  a: 1\n  a: 3", "test.yaml:3: x.a: appears twice here (first in line 2)"),
        ("x: !!python/object:os.system rm", "test.yaml:1: x: the tag"),
        ("x: !!set {a}", "test.yaml:1: x: the tag"),
        ("x: !!int text", "test.yaml:1: x: the tag"),
        ("? [a, b]\n: 1", "test.yaml:1: a key must be a single word"),
        ("a: &a\n  b: *a", "test.yaml:1: a.b: contains itself through an alias"),
        ("a: &a\n  b: &b\n    <<: *a", "test.yaml:1: a.b: contains itself through an alias"),
        (f"? {'k' * 2000}\n: 1", "test.yaml:1: a key must be a single word, not 2,000 characters"),
        ("a:\n  <<: 3", "test.yaml:2: a: '<<' takes a map"),
    ],
)
def test_invalid_keys_tags_and_aliases_are_mistakes_with_their_line(text: str, expected: str):
    (mistake,) = read_text(text, "test.yaml").mistakes
    assert str(mistake).startswith(expected)


def test_of_equal_keys_the_first_is_kept_so_that_the_rest_can_be_checked():
    assert read_text("a: 1\na: 2\nb: 3", "test.yaml").data == {"a": 1, "b": 3}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3", 3, "is not YAML"),
        ("a:\n\t- 1", 2, "indent with spaces"),
        (
            "a:\n\u00a0\u00a0b: 1\n  c: 2",
            2,
            "U+00A0 (no-break space), which is not a space in YAML: replace each one with",
        ),
        ("a:\n \u00a0b: 1\n \u00a0c: 2", 2, "U+00A0 (no-break space)"),
        ("a:\n  b:\u00a01\n  c: 2", 2, "U+00A0 (no-break space)"),
        ("a:\n  b: \u3000one", 2, "U+3000 (ideographic space)"),
        ("a:\n  b: one\u00a0", 2, "U+00A0 (no-break space)"),
        ("a:\n\u200bb: 1", 2, "U+200B (zero width space)"),
        ("a: [1,\u20092]", 1, "U+2009 (thin space)"),
        ("a: 1\n-\u00a0b", 2, "U+00A0 (no-break space)"),
        ("a: 'open\n\n", 3, "is not YAML"),
        ("a: *nowhere", 1, "undefined alias 'nowhere'; put text that begins with this character in quotes"),
        ("a: {b: %name}", 1, "put text that begins with this character in quotes"),
        ("a:\n  b: 1\n  c:64\nd: 1", 3, "; write a space after ':'"),
        ("a:\n  - b:1\n    c: 2", 2, "; write a space after ':'"),
        ("a:\n  b: 1\n  c\nd: 1", 3, "; write ': ' after a key"),
        ("a:\n  b: 1: 2\n", 2, "; put text that contains ': ' in quotes"),
        ("a:\n  b: 1\n\n    c: 2", 4, "; 'c' starts in column 5, but 'b' before it, in line 2, starts in column 3:"),
        ("a:\n  b: 1\n c: 2", 3, "; 'c' starts in column 2, but 'b' before it, in line 2, starts in column 3: start"),
        (r'a: "C:\Users"', 1, "write paths in single quotes, or with /"),
        ("a: 1\n---\nb: 2", 2, "single document"),
        ("a: 1\nb: \x07", 2, "is not allowed in YAML"),
        ("[" * 3000, 1, "nested too deeply: at most 50"),
    ],
)
def test_invalid_yaml_is_an_error_with_its_line(text: str, line: int | None, words: str):
    with pytest.raises(ConfigError) as caught:
        read_text(text, "test.yaml")
    (mistake,) = caught.value.mistakes
    assert mistake.line == line
    assert words in mistake.message


@pytest.mark.parametrize("text", ["a\u00a0b: 1", "a: '\u00a0b'", "a: |\n  \u00a0b", "# \u00a0\na: 1", "a: b\u00a0c"])
def test_no_break_spaces_in_names_quotes_and_comments_are_text(text):
    assert r"\xa0" in repr(read_text(text, "test.yaml").data) or text.startswith("#")


def test_a_missing_file_is_named_with_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no such file") as caught:
        read_file(tmp_path.relative_to(tmp_path) / "absent.yaml")
    assert str(tmp_path / "absent.yaml") in str(caught.value)


def test_a_folder_is_not_a_configuration(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        read_file(tmp_path)


def test_a_file_that_is_not_utf8_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: is not UTF-8 \(byte 0xe9\)"):
        read_file(path)


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_file(path).data == {"a": 1, "b": 2}


ALIASES = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MERGES = "m0: &m0 {x: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
LADDER = "a0: &a0 1\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (ALIASES, 1, "more than 20,000 values"),
        (MERGES, 1, "more than 20,000 values"),
        (LADDER, None, "has aliases that nest too deeply"),
        ("a: [" + "1, " * 30_000 + "1]", 1, "at most 20,000 keys and values"),
        ("{a: " * 3000, 1, "nested too deeply"),
    ],
    ids=["aliases", "merges", "a ladder of aliases", "many", "maps"],
)
def test_an_oversized_document_is_refused_before_it_is_expanded(text, line, words):
    with pytest.raises(ConfigError) as caught:
        read_text(text, "test.yaml")
    (mistake,) = caught.value.mistakes
    assert words in mistake.message
    assert line is None or mistake.line == line


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/zero")
def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match="too large for a configuration file; the limit is 1,000,000 bytes"):
        read_file(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["123456789012345678901", "0x" + "f" * 20, "-9223372036854775809"])
def test_a_whole_number_of_more_than_64_bits_is_a_float(text: str):
    assert type(read(f"a: {text}")["a"]) is float


def test_a_missing_key_has_no_line_in_maps_that_are_merged_into_themselves():
    document = read_text("a: &a {<<: *a, x: 1}\nb: &b {<<: [*a, *b]}", "test.yaml")
    assert document.line_of(("b", "nowhere")) == 2
    assert document.has(("b", "x"))


OF_ML_AGENTS = """
behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict
  args:
  - !!python/name:mlagents.trainers.settings.TrainerSettings ''
  dictitems:
    Ball: {trainer_type: !!python/object/apply:mlagents.trainers.settings.TrainerType [ppo]}
    Bell: !!python/object:mlagents.trainers.settings.TrainerSettings
      max_steps: 5
      sizes: !!python/tuple [1, 2]
      by_name: !!python/object/apply:collections.defaultdict
        args: [!!python/name:mlagents.trainers.settings.Nothing '']
        dictitems:
          ? !!python/object/apply:mlagents.trainers.settings.RewardSignalType [gail]
          : !!python/object/new:mlagents.trainers.settings.GAIL {state: {strength: !!python/float 1.5}}
    Bill: !!python/object/apply:mlagents.trainers.settings.TrainerSettings {}
"""


def test_pythons_tags_of_ml_agents_stand_for_the_plain_data_in_them():
    document = read_text(OF_ML_AGENTS, "old.yaml")
    assert document.mistakes == () and document.tagged
    assert document.data == {
        "behaviors": {
            "Ball": {"trainer_type": "ppo"},
            "Bell": {"max_steps": 5, "sizes": [1, 2], "by_name": {"gail": {"strength": 1.5}}},
            "Bill": {},
        }
    }
    assert document.line_of(("behaviors", "Bell", "max_steps")) == 8
    assert not read_text("behaviors: {Ball: {}}", "new.yaml").tagged


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system [ls]", "!!python/module:os ''", "!!python/name:os.system ''", "!mine {a: 1}"],
)
def test_other_tags_are_mistakes_and_nothing_is_made_of_any_class(tag):
    (mistake,) = read_text(f"x: {tag}", "test.yaml").mistakes
    assert str(mistake).startswith("test.yaml:1: x: the tag")


def test_a_tagged_map_that_contains_itself_is_a_mistake():
    document = read_text("x: &a !!python/object:mlagents.X {y: *a}", "test.yaml")
    assert "contains itself" in str(document.mistakes[0])


@pytest.mark.parametrize("value", ["object/apply:mlagents.X [*a]", "object/apply:collections.X {dictitems: *a}"])
def test_a_tag_that_stands_for_itself_is_a_mistake(value):
    with pytest.raises(ConfigError, match="contains itself through an alias"):
        read_text(f"x: &a !!python/{value}", "test.yaml")
