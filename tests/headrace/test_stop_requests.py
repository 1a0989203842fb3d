"""As long as a command has nothing to save, a request ends its process at once, and nothing swallows it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from headrace.stop_requests import REQUESTS, ended_at_once

pytestmark = pytest.mark.windows_too

SWALLOWING = """
import signal, sys
from headrace.stop_requests import cleaned_up_by, ended_at_once

class Swallows:
    def __del__(self):  # where Python prints exceptions and goes on
        signal.raise_signal(int(sys.argv[1]))

sys.argv[0] = "run-pipeline"
with ended_at_once(), cleaned_up_by(lambda: print("cleaned up", flush=True)):
    Swallows()
    print("went on", flush=True)
"""
KNOWN = """
import signal, sys
from headrace.stop_requests import ended_at_once
with ended_at_once(for_good=True):
    pass
signal.raise_signal(signal.SIGINT)
sys.exit(3)
"""
LEFT = """
import sys, threading
from headrace.stop_requests import end_in_time

def waits():
    threading.Event().wait()

HOW
end_in_time(3, named_s=0.01, ended_s=0.02)
sys.exit(3)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", REQUESTS)
def test_a_request_ends_the_process_with_one_line_if_an_exception_would_be_swallowed(number):
    done = run(SWALLOWING, str(int(number)))
    assert (done.returncode, done.stdout) == (128 + number, "cleaned up\n")
    assert done.stderr == f"[ERROR] run-pipeline: ended immediately, by {number.name}\n"


def test_once_the_status_is_known_a_request_changes_nothing():
    done = run(KNOWN)
    assert (done.returncode, done.stderr) == (3, "")


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(each) for each in REQUESTS]
    with ended_at_once():
        assert [signal.getsignal(each) for each in REQUESTS] != before
    assert [signal.getsignal(each) for each in REQUESTS] == before


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("threading.Thread(target=waits, name='of users').start()", "the thread 'of users' (at "),
        ("import atexit; atexit.register(waits)", "an exit handler (at "),
    ],
)
def test_leftover_user_threads_and_exit_handlers_are_named_and_delay_the_exit_for_seconds(how, named):
    done = run(LEFT.replace("HOW", how))
    assert done.returncode == 3
    assert done.stderr.startswith(f"[WARNING] Everything is done, but {named}")
