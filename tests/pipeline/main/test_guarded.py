"""Main's tasks: what is started and never begins is no warning of Python's."""

from __future__ import annotations

import asyncio

from headrace.pipeline.main.supervision import GuardedTasks


async def test_work_that_is_cancelled_before_it_began_leaves_no_warning():
    tasks, began = GuardedTasks(lambda failure: None), []

    async def work() -> None:
        began.append(True)

    async with tasks.group:
        tasks.start(work()).cancel()  # Python's warning, that work was never awaited, would fail this test
    assert not began


async def test_work_that_has_ended_is_left_alone():
    failures = []
    tasks = GuardedTasks(failures.append)

    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("no luck")

    async with tasks.group:
        tasks.start(work())
    (failure,) = failures
    assert "no luck" in failure.message
