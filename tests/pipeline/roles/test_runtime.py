"""How a host ends: what main hears, and what those who take from the host see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.pipeline.control import HostFailed, HostFinished, OpenEdge, StatisticsReport, local_pair
from headrace.pipeline.hosts.inline import LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.reporting.console import Progress
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.reporting.statistics import StatisticsCollector, StatisticsWriter
from headrace.pipeline.roles.runtime import Host
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.stages.trainer.report import TrainerReport

pytestmark = pytest.mark.virtual_time


class Short(Host):
    """Opens its stream, and ends at once: well, or with an error."""

    def __init__(self, *all_hosts: Any, error: Exception | None) -> None:
        super().__init__(*all_hosts)
        self._error = error

    async def _work(self) -> None:
        await self.open_sender(OpenEdge("trajectories/Ball", {}))
        if self._error is not None:
            raise self._error

    async def _listen(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(("error", "last"), [(None, HostFinished), (ValueError("the motor is on fire"), HostFailed)])
async def test_its_streams_end_with_it_and_not_before_it_said_how_it_failed(error, last):
    queue: AgentManagerQueue[Any] = AgentManagerQueue("trajectories/Ball", 2)
    edges, (main, theirs) = LocalEdges(), local_pair("actor-0")
    edges.ends["trajectories/Ball"] = queue
    told: list[tuple[Any, bool]] = []

    class Telling:
        """The host's end of the channel; notes down with each message whether the stream has ended by then."""

        def send(self, message: Any) -> None:
            told.append((message, queue.closed))

        drain, receive, close = theirs.drain, theirs.receive, theirs.close

    host = Short(HostPlan("actor", "actor-0", {"behaviors": {"Ball": {}}}, None, "", 0), Telling(), edges, error=error)
    assert await host.run() is (error is None)
    message, ended_before = told[-1]
    assert isinstance(message, last)
    assert queue.closed
    if error is not None:
        assert not ended_before
    main.close()


RATE = "Environment/Success Rate"


class Summaries(StatisticsWriter):
    """For each summary, whether it has the success rate."""

    def __init__(self) -> None:
        self.have_rate: list[bool] = []

    def write(self, category, summaries, step):
        if category == "Ball":
            self.have_rate.append(RATE in summaries)


class Playing(Host):
    """Starts slowly, then ends an episode and passes on ten steps every hundredth of a second."""

    def __init__(self, *all_hosts: Any, played: Any, start_s: float, play_s: float) -> None:
        super().__init__(*all_hosts)
        self._played, self._start_s, self._play_s = played, start_s, play_s

    async def _work(self) -> None:
        await asyncio.sleep(self._start_s)
        for number in range(1, int(self._play_s * 100) + 1):
            await asyncio.sleep(0.01)
            self.statistics.add("Ball", RATE, 1.0)
            self._played(10 * number)

    async def _listen(self) -> None:
        await asyncio.Event().wait()


async def reports_and_summaries(start_s: float, play_s: float, summaries: int) -> tuple[int, list[bool]]:
    """Let a host play for some seconds; return the number of its reports, and which summaries have its statistics."""
    collector, writer, reports = StatisticsCollector(), Summaries(), 0
    reporter = Reporter(collector, [writer], Progress(enabled=False))
    reporter.add_behavior("Ball", 10**6, int(1000 * play_s / summaries), 0, {})
    main, theirs = local_pair("actor-0")

    class Reporting:
        """The host's end of the channel; main receives each message immediately."""

        def send(self, message: Any) -> None:
            nonlocal reports
            if isinstance(message, StatisticsReport):
                reporter.add_statistics(message.statistics, message.queues, "actor-0", message.span_s)
                reports += 1

        drain, receive, close = theirs.drain, theirs.receive, theirs.close

    def learn(step: int) -> None:
        reporter.record_report(TrainerReport("Ball", step, 1, False, None, 0, {}))

    plan = HostPlan("actor", "actor-0", {"behaviors": {"Ball": {}}}, None, "", 0)
    times = {"start_s": start_s, "play_s": play_s}
    assert await Playing(plan, Reporting(), LocalEdges(), played=learn, **times).run()
    main.close()
    return reports, writer.have_rate


@pytest.mark.parametrize("start_s", [0.0, 0.4, 5.0, 60.0])
async def test_in_a_run_of_two_seconds_nearly_every_summary_has_the_statistics_of_the_environment(start_s):
    _, have_rate = await reports_and_summaries(start_s, 2.0, 10)
    assert len(have_rate) == 10
    assert sum(have_rate) >= 8


async def test_a_host_reports_once_a_second_in_a_long_run():
    reports, have_rate = await reports_and_summaries(0.0, 100.0, 20)
    assert 100 <= reports <= 125
    assert all(have_rate)
