"""Requests to end this process are received by a thread, whatever kind they are of."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys

import pytest

from headrace.pipeline.common.signals import REQUESTS, requests_received

CONSOLE = """
import ctypes, queue, sys, threading
from headrace.pipeline.common.signals import requests_received
EVENT, NAME = {event}, "headrace-test"
told = queue.Queue()
with requests_received(lambda: told.put("told"), NAME):
    if EVENT is None:
        from headrace.win32 import request
        request(NAME)
    else:  # as the system calls handlers: in a thread that it makes
        routine = ctypes.WinDLL("kernelbase").CtrlRoutine
        threading.Thread(target=routine, args=(EVENT,), daemon=True).start()
    assert told.get(timeout=60) == "told"
print("in order")
"""


def test_each_signal_is_received_and_handlers_are_as_before_afterwards():
    before = {number: signal.getsignal(number) for number in REQUESTS}
    told: queue.Queue[str] = queue.Queue()
    with requests_received(lambda: told.put("told")):
        for number in REQUESTS:
            signal.raise_signal(number)
            assert told.get(timeout=30) == "told"
    assert told.empty()
    assert {number: signal.getsignal(number) for number in REQUESTS} == before


@pytest.mark.windows
@pytest.mark.parametrize("event", [1, 2, 5, 6, None], ids=["break", "close", "log-off", "shutdown", "from another"])
def test_what_the_console_asks_is_a_request_and_the_process_ends_in_order(event):
    code = CONSOLE.format(event=event)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "in order"), ended.stderr
