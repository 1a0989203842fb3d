"""Background jobs of a writer: in order, bounded, and no error or loss is silent."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest

from headrace.pipeline.reporting.trackers import MOST_WAITING, BackgroundJobs
from headrace.stages.errors import StageError


def test_jobs_are_done_in_order_before_close_returns():
    done: list[int] = []
    jobs = BackgroundJobs("test")
    for number in range(50):
        jobs.put(partial(done.append, number))
    jobs.close()
    assert done == list(range(50))


def test_the_error_of_the_last_job_is_raised_at_the_end():
    jobs = BackgroundJobs("test")
    jobs.put(lambda: [][0])
    with pytest.raises(IndexError):
        jobs.close()


def test_a_service_that_hangs_is_refused_more_jobs_and_its_lost_summaries_are_counted(caplog):
    caplog.set_level(logging.WARNING)
    jobs, go_on = BackgroundJobs("Slow", patience_s=0.01), threading.Event()
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait()

    jobs.put(hang)
    begun.wait()
    for _ in range(MOST_WAITING):
        jobs.put(lambda: None)
    with pytest.raises(StageError, match="Slow is too slow: 1000 summaries are waiting for it"):
        jobs.put(lambda: None)
    jobs.close()
    go_on.set()
    (lost,) = [record.getMessage() for record in caplog.records]
    assert lost.startswith("Slow did not accept the last 1000 summaries within 0 s")
