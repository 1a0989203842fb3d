"""What a child that ends writes into its crash file, and what main reads of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.pipeline.common.process import let_child_find_us, start_python
from headrace.pipeline.hosts.crash_file import CrashFile
from headrace.pipeline.hosts.protocol import crashed, how_it_ended

pytestmark = pytest.mark.windows_too

WRITE = "import sys\nfrom headrace.pipeline.hosts.crash_file import *\ndescriptor = open_crash_file(sys.argv[1])\n"


def said_by(code: str, crash_file: CrashFile) -> tuple[int, bytes]:
    """The status and the standard error of a child that is given last crash_file."""
    environment = dict(os.environ)
    let_child_find_us(environment)
    line = ["-c", WRITE + code, crash_file.argument]
    child = start_python(line, environment, stderr=subprocess.PIPE, **crash_file.options)
    _, error = child.communicate()
    return child.returncode, error


def test_a_crash_file_is_read_once():
    crash_file = CrashFile()
    assert said_by("write_crash_file(descriptor, 'no way \N{HEAVY CHECK MARK}')", crash_file) == (0, b"")
    assert (crash_file.read_and_close(), crash_file.read_and_close()) == ("no way \N{HEAVY CHECK MARK}", "")


@pytest.mark.lengthy
def test_a_crash_in_c_leaves_its_stack():
    crash_file = CrashFile()
    status, error = said_by("import faulthandler\nfaulthandler._read_null()", crash_file)
    assert crashed(status)
    assert error == b""
    assert ("access violation" if sys.platform == "win32" else "Segmentation fault") in crash_file.read_and_close()


def test_tracebacks_go_to_standard_error_if_no_file_can_be_made(monkeypatch):
    def refuse(**_):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    crash_file = CrashFile()
    assert said_by("write_crash_file(descriptor, 'no way')", crash_file) == (0, b"no way")
    assert crash_file.read_and_close() == ""


def test_a_process_ends_by_a_signal_a_status_or_windows_itself():
    assert how_it_ended(-9) == "was killed by signal 9"
    assert how_it_ended(3) == "ended with status 3"
    assert how_it_ended(0xC0000005) == "ended with status 0xC0000005 (access violation)"
    assert [crashed(status) for status in (0, 1, -9, -15, -11, 0xC0000005)] == [False] * 4 + [True] * 2
