"""The watch of main's event loop names who holds it, while it is held, and interrupts that in the end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import time

import pytest

from headrace.config.pipeline import MainSilence
from headrace.pipeline.common.loop_watch import Interrupted, LoopWatch
from headrace.stages.loop import NoSender, StageFailure, run_source
from headrace.stages.stage import Source, StageContext


class Holds(Source):
    """Holds the event loop until something is raised."""

    def __init__(self, hold):
        self._hold = hold

    async def produce(self):
        self._hold()
        yield


def computes():
    while True:
        pass


def sleeps():
    time.sleep(1e9)


def ignores_exceptions():
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def limits(warn_s=0.3, end_s=None):
    return MainSilence(warn_s=warn_s, end_s=end_s)


@pytest.mark.lengthy
@pytest.mark.parametrize("hold", [computes, sleeps, ignores_exceptions])
def test_a_stage_that_blocks_the_loop_is_named_then_interrupted_as_its_own_failure(caplog, hold):
    async def run():
        with LoopWatch(limits(end_s=0.8), check_every_s=0.1):
            await run_source(Holds(hold), NoSender(), StageContext("greedy"))

    with pytest.raises(
        StageFailure, match=r"stage greedy failed while producing: Interrupted: The main process has been silent"
    ):
        asyncio.run(run())
    warning, error = (record for record in caplog.records if "silent" in record.message)
    assert warning.levelno == logging.WARNING
    assert "pipeline.supervision.main.warn_s): stage greedy while producing\n" in warning.message
    for record in (warning, error):
        assert f"in {hold.__name__}" in record.message


@pytest.mark.lengthy
def test_a_call_that_can_not_be_interrupted_is_abandoned():
    given_up = []
    semaphore = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(semaphore)

    def give_up(words):
        given_up.append(words)
        libc.pthread_mutex_unlock(semaphore)  # which lets the call return

    def waits_in_c():
        libc.pthread_mutex_lock(semaphore)

    async def run():
        with LoopWatch(limits(0.2, 0.2), give_up, check_every_s=0.1, yield_s=0.3):
            waits_in_c()

    with pytest.raises(Interrupted):  # as soon as the call has returned
        asyncio.run(run())
    assert len(given_up) == 1
    assert "can't be interrupted" in given_up[0]
    assert "in waits_in_c" in given_up[0]
