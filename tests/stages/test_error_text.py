"""What a message tells of an exception that the user's code raised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.stages.errors import StageError, describe_error, describe_fault, raised_in_user_code
from headrace.stages.loading import load_attribute

needs_sources = pytest.mark.skipif(
    not Path(json.loads.__code__.co_filename).is_absolute(), reason="this Python's library has no sources"
)


@pytest.fixture
def duel(tmp_path):
    (tmp_path / "duel.py").write_text(
        "import json\n\n\ndef step():\n    return rules()\n\n\ndef rules():\n    return json.loads('{')\n\n\n"
        "def silent():\n    raise KeyboardError\n\n\nclass KeyboardError(Exception): ...\n"
    )
    names = load_attribute("duel:step", tmp_path, "environment").__globals__
    return names, tmp_path / "duel.py"


def raised_by(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        call()
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # without this file, which is a user's as well
    return error


@needs_sources
def test_the_innermost_line_of_the_users_own_file_is_reported(duel):
    names, path = duel
    assert describe_error(raised_by(names["step"])) == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        f"(at {path}:9, in rules)"
    )


def test_an_exception_without_words_is_reported_by_its_kind(duel):
    names, path = duel
    assert describe_error(raised_by(names["silent"])) == f"KeyboardError (at {path}:13, in silent)"


@needs_sources
def test_an_error_outside_user_code_has_no_place():
    error = raised_by(lambda: json.loads("{"))
    error.__traceback__ = error.__traceback__.tb_next  # without the lambda
    assert describe_error(error).endswith("(char 1)")
    assert not raised_in_user_code(error)


def test_headrace_s_files_are_not_user_code():
    error = raised_by(lambda: load_attribute("no module", None, "stage"))
    error.__traceback__ = error.__traceback__.tb_next
    assert describe_error(error).startswith("LoadError: stage 'no module': expected module:attribute")
    assert "(at " not in describe_error(error)


def test_a_stage_error_caused_by_user_code_is_recognised(duel):
    names, _ = duel
    ours = StageError("its step() raised")
    assert not raised_in_user_code(ours)
    ours.__cause__ = raised_by(names["step"])
    assert raised_in_user_code(ours)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages of another Python; one makes what the other has, and raises a TypeError anew, as Gymnasium does."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "gymnasium").mkdir(parents=True)
    (folder / "gymnasium" / "making.py").write_text(
        "def make(maker):\n    try:\n        maker()\n    except TypeError as error:\n"
        "        raise TypeError(f'{error} was raised') from error\n"
    )
    (folder / "stocks.py").write_text(
        "def bare():\n    assert 1 > 2\n\n\ndef odd():\n    raise TypeError('a price')\n\n\n"
        "def asked():\n    raise NotImplementedError\n"
    )
    names: dict = {}
    for path in ("gymnasium/making.py", "stocks.py"):
        exec(compile((folder / path).read_text(), folder / path, "exec"), names)
    return names, folder / "stocks.py"


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        ("bare", "AssertionError (at {}:2, in bare: assert 1 > 2)"),
        ("odd", "TypeError: a price was raised (at {}:6, in odd)"),
        ("asked", "NotImplementedError (at {}:10, in asked)"),
    ],
)
def test_an_error_of_a_package_has_a_place_in_that_package(packages, maker, expected):
    names, path = packages
    error = raised_by(lambda: names["make"](names[maker]))
    error.__traceback__ = error.__traceback__.tb_next  # without the lambda
    assert describe_fault(error) == expected.format(path)
