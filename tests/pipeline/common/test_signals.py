"""Requests to end this process are received by a thread, whatever kind they are of."""

from __future__ import annotations

import faulthandler
import queue
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from headrace.pipeline.common.signals import SAME_S, requests_received
from headrace.stop_requests import REQUESTS

CONSOLE = """
import ctypes, queue, sys, threading
from headrace.pipeline.common.signals import requests_received
EVENT, NAME = {event}, "headrace-test"
told = queue.Queue()
with requests_received(lambda _: told.put("told"), NAME):
    if EVENT is None:
        from headrace.win32 import request
        request(NAME)
    else:  # as the system calls handlers: in a thread that it makes
        routine = ctypes.WinDLL("kernelbase").CtrlRoutine
        threading.Thread(target=routine, args=(EVENT,), daemon=True).start()
    assert told.get(timeout=60) == "told"
print("in order")
"""


def answers_to(*numbers: signal.Signals, same_s: float = SAME_S) -> int:
    """How many requests count of signals that come at once, one after the other."""
    told: queue.Queue[str] = queue.Queue()
    with requests_received(lambda _: told.put("told"), same_s=same_s):
        for number in numbers:
            signal.raise_signal(number)
    for thread in threading.enumerate():
        if thread.name == "request to end":
            thread.join()
    return told.qsize()


@pytest.mark.parametrize("number", REQUESTS)
def test_each_signal_is_received_and_handlers_are_as_before_afterwards(number):
    before = {each: signal.getsignal(each) for each in REQUESTS}
    assert answers_to(number) == 1
    assert {each: signal.getsignal(each) for each in REQUESTS} == before


def test_signals_within_a_second_count_as_one_request():
    assert answers_to(*REQUESTS, *REQUESTS, signal.SIGINT) == 1


def test_a_later_ctrl_c_is_another_request_and_what_schedulers_repeat_is_none():
    assert answers_to(signal.SIGTERM, signal.SIGINT, signal.SIGINT, same_s=0.0) == 3
    assert answers_to(signal.SIGINT, signal.SIGTERM, signal.SIGTERM, same_s=0.0) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_a_batch_system_s_warning_stays_with_a_script_that_handles_it_itself_in_python_or_in_c():
    told: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
    try:
        assert answers_to(signal.SIGUSR1) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [signal.SIGUSR1]
    if sys.platform == "linux":
        with tempfile.TemporaryFile() as dump:
            faulthandler.register(signal.SIGUSR1, dump)
            try:
                assert answers_to(signal.SIGUSR1) == 0
            finally:
                faulthandler.unregister(signal.SIGUSR1)
            assert dump.seek(0, 2) > 0
    assert answers_to(signal.SIGUSR1) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_terminal_s_end_stays_ignored_as_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert answers_to(signal.SIGHUP) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.windows
@pytest.mark.parametrize("event", [1, 2, 5, 6, None], ids=["break", "close", "log-off", "shutdown", "from another"])
def test_a_console_event_is_a_request_and_the_process_ends_in_order(event):
    code = CONSOLE.format(event=event)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "in order"), ended.stderr
