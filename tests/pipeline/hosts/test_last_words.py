"""What a child writes that ends before main can be told otherwise, and what main reads of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.pipeline.common.process import let_child_find_us, start_python
from headrace.pipeline.hosts.failures import crashed, how_it_ended
from headrace.pipeline.hosts.last_words import LastWords

pytestmark = pytest.mark.windows_too

WRITE = "import sys\nfrom headrace.pipeline.hosts.last_words import *\ndescriptor = open_last_words(sys.argv[1])\n"


def said_by(code: str, words: LastWords) -> tuple[int, bytes]:
    """The status and the standard error of a child that is given last words."""
    environment = dict(os.environ)
    let_child_find_us(environment)
    line = ["-c", WRITE + code, words.argument]
    child = start_python(line, environment, stderr=subprocess.PIPE, **words.options)
    _, error = child.communicate()
    return child.returncode, error


def test_what_a_child_writes_is_read_once():
    words = LastWords()
    assert not words.written
    assert said_by("write_last_words(descriptor, 'no way \N{HEAVY CHECK MARK}')", words) == (0, b"")
    assert words.written
    assert (words.take(), words.take()) == ("no way \N{HEAVY CHECK MARK}", "")


@pytest.mark.lengthy
def test_a_crash_in_c_leaves_its_stack():
    words = LastWords()
    status, error = said_by("import faulthandler\nfaulthandler._read_null()", words)
    assert crashed(status)
    assert error == b""
    assert ("access violation" if sys.platform == "win32" else "Segmentation fault") in words.take()


def test_where_no_file_can_be_made_standard_error_takes_them(monkeypatch):
    def refuse(**_):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    words = LastWords()
    assert said_by("write_last_words(descriptor, 'no way')", words) == (0, b"no way")
    assert words.take() == ""


def test_a_process_ends_by_a_signal_a_status_or_windows_itself():
    assert how_it_ended(-9) == "was killed by signal 9"
    assert how_it_ended(3) == "ended with status 3"
    assert how_it_ended(0xC0000005) == "ended with status 0xC0000005 (access violation)"
    assert [crashed(status) for status in (0, 1, -9, -15, -11, 0xC0000005)] == [False] * 4 + [True] * 2
