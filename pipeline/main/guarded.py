"""Runs all of main's tasks: an exception in any of them ends the run with a named failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.control import HostFailed
from headrace.pipeline.hosts.failures import describe_failure
from headrace.stages.errors import is_failure

log = logging.getLogger(__name__)


class GuardedTasks:
    """Main's tasks, including runners: tasks that carry items through main until their queues end.

    Args:
        fail: called with a failure, which ends the run.

    Attributes:
        group: the task group that owns all tasks.
    """

    def __init__(self, fail: Callable[[HostFailed], object]) -> None:
        self.group = asyncio.TaskGroup()
        self._fail = fail
        self._runners: list[asyncio.Task[None]] = []

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the run with a failure if this context raises an exception."""
        try:
            yield
        except BaseException as error:
            if not is_failure(error):
                raise
            self._fail(describe_failure(MAIN, error))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; if the task raises an exception, the run fails."""
        task = self.group.create_task(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # or Python warns about a coroutine cancelled at its start
        return task

    def run(self, runner: Coroutine[Any, Any, None]) -> None:
        """Start a runner as a guarded task."""
        task = self.start(runner)
        task.set_name("a queue of main")
        self._runners.append(task)

    async def end_runners(self, patience_s: float) -> None:
        """Wait for the runners, whose queues have ended, to end; cancel those that take longer than `patience_s`."""
        _, left = await asyncio.wait(self._runners, timeout=patience_s) if self._runners else ((), ())
        for task in left:
            log.warning("%s did not end within %.0f s; cancelling it.", task.get_name(), patience_s)
            task.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        with self.failing():
            await work
