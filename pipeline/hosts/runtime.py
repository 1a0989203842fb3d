"""What every host has: its plan, its control channel, its statistics, its parts of checkpoints, its log.

A host's own work lies in `actor_host`, `learner_host` and `evaluation_host`; where it runs, in `inline` and `process`.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from config import ConfigError
from pipeline.common.errors import RunError
from pipeline.common.graph import part_name
from pipeline.common.seeds import derive_seed
from pipeline.control.channel import ControlEnd
from pipeline.control.messages import CreditsReturned, HostFailed, HostFinished, PartFailed, StatisticsReport
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.reporting.statistics import StatisticsCollector
from pipeline.run_folder.checkpoint import Checkpoint, CheckpointError, newest_checkpoint, write_part
from queues.ends import Inlet, Outlet, QueueStatistics
from queues.errors import QueueClosed, SpecError
from stages.error_text import describe_error, raised_in_user_code
from stages.errors import StageError
from stages.loop import StageFailure, StageHooks
from stages.stage import StageContext

REPORT_EVERY_S = 1.0
"""How often a host sends its statistics and a heartbeat."""


class HostRuntime:
    """The common part of a host."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        self.plan = plan
        self.config = plan.load_config()
        self.control = control
        self.edges = edges
        self.statistics = StatisticsCollector(plan.seed)
        self.ends: dict[str, Inlet[Any] | Outlet[Any]] = {}
        self.checkpoint: Checkpoint | None = newest_checkpoint(plan.folder / "checkpoints") if plan.resume else None
        self._returned: dict[tuple[str, str, int], int] = {}

    def context(self, stage: str) -> StageContext:
        """The context of one of its stages."""
        return StageContext(
            name=stage,
            replica=self.plan.replica,
            seed=derive_seed(self.plan.seed, stage, self.plan.replica),
            run_folder=self.plan.folder,
            statistics=self.statistics,
            log=logging.getLogger(f"stages.{stage}"),
        )

    def hooks(self, stage: str) -> StageHooks:
        """What the loop of one of its stages reports to."""
        return StageHooks(
            lambda behavior, source, amount: self.return_credits(stage, behavior, source, amount),
            self.save_part,
        )

    def part_name(self, stage: str) -> str:
        """Name of a stage's part of a checkpoint: unique over all hosts and the same in each run."""
        return part_name(stage, self.plan.name)

    def saved_state(self, stage: str) -> Mapping[str, Any] | None:
        """What a stage goes on from, None in a fresh run."""
        if self.checkpoint is None:
            return None
        state: Mapping[str, Any] | None = self.checkpoint.read(self.part_name(stage))
        return state

    def save_part(self, stage: str, number: int, state: Mapping[str, Any]) -> None:
        """Write a stage's part of a checkpoint, and tell main; a disk that refuses does not end the training."""
        name = self.part_name(stage)
        try:
            self.control.send(write_part(self.plan.folder / "checkpoints", number, name, state))
        except OSError as error:
            self.control.send(PartFailed(number, name, str(error)))

    def return_credits(self, stage: str, behavior: str, source: int, amount: int) -> None:
        """A stage took in `amount` credits that it did not pass on."""
        key = (stage, behavior, source)
        self._returned[key] = self._returned.get(key, 0) + amount
        self.control.send(CreditsReturned(self.part_name(stage), behavior, source, self._returned[key]))

    async def report_periodically(self) -> None:
        """Send statistics, queue counts and a heartbeat, for ever."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self.report()
            await self.control.drain()

    def report(self) -> None:
        """Send what was gathered since the last time."""
        queues = tuple(plain_statistics(end.statistics()) for end in self.ends.values())
        self.control.send(StatisticsReport(self.statistics.drain(), queues))


async def run_host(
    runtime: HostRuntime, work: Callable[[], Awaitable[None]], listen: Callable[[], Awaitable[None]]
) -> bool:
    """Run a host's work to its end, beside what listens and reports; tells main how it ended.

    Args:
        runtime: the host.
        work: returns when the host has nothing left to do.
        listen: handles control messages until main closes the channel; then the host ends, whatever it was doing.

    Returns:
        whether it ended well.
    """
    try:
        await _beside(work(), listen(), runtime.report_periodically())
    except ExceptionGroup as group:
        failure = root_cause(group)
        runtime.report()
        if isinstance(failure, QueueClosed):
            runtime.control.send(HostFinished())
            return True
        runtime.control.send(describe_failure(runtime.plan.name, failure))
        return False
    runtime.report()
    runtime.control.send(HostFinished())
    return True


async def _beside(work: Awaitable[None], *background: Awaitable[None]) -> None:
    """Run `work`; end when it or the first of the background coroutines ends, and cancel the others."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_as_coroutine(b)) for b in (work, *background)]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def root_cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """The failure that the others followed from: the first that is not merely a closed queue."""
    leaves = list(_leaves(group))
    telling = [leaf for leaf in leaves if not isinstance(leaf, QueueClosed)]
    named = [leaf for leaf in telling if isinstance(leaf, StageFailure)]
    return (named or telling or leaves)[0]


def describe_failure(host: str, error: BaseException) -> HostFailed:
    """A failure as main is told of it."""
    stage = error.stage if isinstance(error, StageFailure) else ""
    cause = error.cause if isinstance(error, StageFailure) else error
    settings_are_wrong = isinstance(cause, ConfigError | CheckpointError | RunError)  # whichever stage came upon it
    blamed = cause if settings_are_wrong else error
    plain = settings_are_wrong or isinstance(error, StageError | SpecError)
    return HostFailed(
        str(blamed) if plain else describe_error(error),
        "".join(traceback.format_exception(cause)),
        stage or host,
        cause.key if isinstance(cause, StageError) else (),
        raised_in_user_code(cause),
    )


def plain_statistics(statistics: QueueStatistics) -> dict[str, Any]:
    """A queue's counts as plain data."""
    return {name: getattr(statistics, name) for name in QueueStatistics.__slots__}


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
