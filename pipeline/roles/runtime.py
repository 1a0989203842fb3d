"""Code shared by all hosts: plan, control channel, queue ends, statistics, and how a host runs and ends.

Each role's module defines the host's work (`common/run_parts.py`); `pipeline/hosts/` defines where hosts run.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from headrace.pipeline.common.global_state_guard import guard_global_state, put_back
from headrace.pipeline.common.process import read_usage
from headrace.pipeline.control import (
    ControlEnd,
    HostFailed,
    HostFinished,
    OpenEdge,
    PreparationNotice,
    StatisticsReport,
)
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan, describe_failure, root_cause
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost
from headrace.pipeline.run_folder.checkpoint import Checkpoint, newest_checkpoint
from headrace.queues.agent_manager_queue import QueueStatistics
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.stages.activity import PREPARES
from headrace.stages.errors import StageError, describe_error, is_failure

REPORT_EVERY_S = 1.0
"""Seconds between a host's reports, which contain statistics and serve as a sign of life."""
FIRST_REPORT_S = 0.05
"""Seconds until the first report, and from a host's first statistics to the next one."""
REPORT_GROWTH = 1.1
"""Factor by which the pause grows with each report. The pause stays about a tenth of the time since the first
statistics, so even in a run of seconds nearly every summary has the statistics of all hosts."""


class Host(ABC):
    """One host, in any role.

    Args:
        plan: the host's plan.
        control: the host's end of the control channel.
        edges: opens queue ends.

    Attributes:
        config: the run's configuration.
        statistics: collects statistics, which the host sends to main regularly.
        checkpoint: the checkpoint from which the host resumes; None in a new run.
        stages: contexts, hooks and checkpoint parts for the host's stages.
    """

    named_in_failures: ClassVar[bool] = False
    """True if failure messages begin with the host's name, because nothing else in them identifies the host."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        self.plan = plan
        self.config = plan.load_config()
        self.control = control
        self.statistics = StatisticsCollector(plan.seed)
        self.checkpoint: Checkpoint | None = newest_checkpoint(plan.folder / "checkpoints") if plan.resume else None
        self.stages = StageHost(
            plan.name,
            plan.folder,
            plan.seed,
            plan.replica,
            self.statistics,
            self.checkpoint,
            control.send,
            plan.incarnation,
        )
        self._edges = edges
        self._before_report: list[Callable[[], None]] = []
        """Called just before each report."""
        self._first_statistics = asyncio.Event()
        self._ends: dict[str, Receiver[Any] | Sender[Any]] = {}
        self._senders: list[Sender[Any]] = []

    async def open_sender(self, message: OpenEdge) -> Sender[Any]:
        """Open the producing end of a queue."""
        sender = self._ends[message.name] = await self._edges.open_sender(message.name, message.address)
        self._senders.append(sender)
        return sender

    async def open_receiver(self, message: OpenEdge) -> Receiver[Any]:
        """Open the consuming end of a queue."""
        receiver = self._ends[message.name] = await self._edges.open_receiver(message.name, message.address)
        return receiver

    @abstractmethod
    async def _work(self) -> None:
        """Do the host's work; return when nothing is left to do."""

    @abstractmethod
    async def _listen(self) -> None:
        """Handle control messages until main closes the channel, which ends the host whatever it is doing."""

    async def run(self) -> bool:
        """Run to completion and report the outcome to main; return True for success."""
        guard_global_state()
        PREPARES.set(self._tell_of_preparing)
        loop = asyncio.get_running_loop()
        self.statistics.on_first = lambda: loop.call_soon_threadsafe(self._first_statistics.set)
        try:
            await _beside(self.plan.name, self._work(), self._listen(), self._report_periodically())
        except ExceptionGroup as group:
            failure = root_cause(group)
            self.report()
            if not isinstance(failure, QueueClosed):
                self.control.send(self._describe(failure))
                return False
        else:
            self.report()
        finally:
            # Only after the failure is reported: a host that dies after its streams have ended can't be replaced.
            for sender in self._senders:
                sender.close()
        self.control.send(HostFinished())
        return True

    def _tell_of_preparing(self, begins: bool) -> None:
        put_back()  # environments were just created, and Headrace's modules may be imported next
        self.control.send(PreparationNotice(begins))

    def report(self) -> None:
        """Send the statistics collected since the last report, with the queue counters."""
        put_back()
        for prepare in self._before_report:
            prepare()
        queues = tuple(plain_statistics(end.statistics()) for end in self._ends.values())
        used = read_usage(os.getpid())
        timings, span_s = self.stages.timings.drain()
        self.control.send(
            StatisticsReport(
                self.statistics.drain(),
                queues,
                self.stages.silent_s(),
                timings,
                span_s,
                used.cpu_s if used else 0.0,
                used.memory if used else 0,
            )
        )

    def _describe(self, failure: BaseException) -> HostFailed:
        report = describe_failure(self.plan.name, failure)
        return replace(report, message=f"{self.plan.name}: {report.message}") if self.named_in_failures else report

    async def _report_periodically(self) -> None:
        delay_s = FIRST_REPORT_S
        while True:
            if self._first_statistics.is_set():
                await asyncio.sleep(delay_s)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._first_statistics.wait()
                    delay_s = FIRST_REPORT_S
                    continue
            delay_s = min(REPORT_EVERY_S, REPORT_GROWTH * delay_s)
            self.report()
            await self.control.drain()


async def _beside(host: str, work: Coroutine[Any, Any, None], *background: Coroutine[Any, Any, None]) -> None:
    """Run `work`; when it or any background coroutine ends, cancel the others and return."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(contained(host, coroutine)) for coroutine in (work, *background)]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


async def contained(host: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a host's coroutine.

    Turn an unexpected SystemExit or cancellation into a StageError, so that it is reported.
    """
    try:
        await work
    except Exception:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise StageError(f"the code of {host} raised {describe_error(error)}") from error


def plain_statistics(statistics: QueueStatistics) -> dict[str, Any]:
    """Return a queue's counts as plain data, with the time of the reading (`at`, in seconds on this host's clock)."""
    return {name: getattr(statistics, name) for name in QueueStatistics.__slots__} | {
        "at": asyncio.get_running_loop().time()
    }
